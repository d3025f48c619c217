/* Tidegauge's tap for C and C++: an application that runs the model itself hands frames over to the agent.
 *
 * One header, no library, C11, Linux. The protocol is that of docs/tap.md, version 1. `tg_tap_frame` costs a few words of
 * shared memory unless the agent wants that frame; nothing waits for the agent but a pause, for a bounded time, and
 * nothing fails because of it. Call everything from the thread that runs the model.
 *
 *     struct tg_tensor in[] = {{"input", TG_FLOAT32, 4, {1, 3, 224, 224}}};
 *     struct tg_tensor out[] = {{"enhanced", TG_FLOAT32, 4, {1, 3, 224, 224}}};
 *     struct tg_tap tap;
 *     tg_tap_init(&tap, "/run/tidegauge/tap.socket", "doorbell");
 *     tap.close_session = my_close; tap.open_session = my_open; tap.run = my_run; tap.user = &my;
 *     tg_tap_before_opening(&tap, 600);
 *     tg_tap_opened(&tap, in, 1, out, 1, "my runtime", "TIDL", 0);
 *     for (;;) { ...; tg_tap_frame(&tap, inputs, outputs, seconds); }
 */
#ifndef TIDEGAUGE_TAP_H
#define TIDEGAUGE_TAP_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { TG_UINT8 = 0, TG_INT8 = 1, TG_UINT16 = 2, TG_INT16 = 3, TG_INT32 = 5, TG_FLOAT32 = 6, TG_INT64 = 8 };
enum { TG_HELLO = 1, TG_OPENED, TG_GIVEN, TG_RAN, TG_CLOSED, TG_FAILED, TG_RUN = 16, TG_PAUSE, TG_OPEN, TG_REFUSED };
enum { TG_WANTED = 16, TG_CALLS = 17, TG_FRAMES = 32, TG_DROPPED = 33, TG_MICROSECONDS = 34 };
enum { TG_VERSION = 1, TG_MAX_TENSORS = 16, TG_HEADER_BYTES = 256, TG_MAX_PACKET = 16384 };
#define TG_MAGIC 0x50544754u

#pragma pack(push, 1)
struct tg_tensor {
    char name[128];
    uint32_t dtype, rank;
    uint64_t shape[8];
};
struct tg_head {
    uint32_t kind, number;
    double a, b;
};
#pragma pack(pop)

struct tg_tap {
    /* Callbacks, or NULL. `run` runs the model on `inputs` and fills `outputs`, 0 for done; `close_session` frees the
     * session, so that a capture can be taken; `open_session` opens it again. */
    int (*run)(void *user, const void *const *inputs, void *const *outputs);
    void (*close_session)(void *user);
    void (*open_session)(void *user);
    void *user;
    /* The rest is the tap's own. */
    char path[108], name[64], runtime[64], provider[64];
    struct tg_tensor tensors[TG_MAX_TENSORS];
    size_t offsets[TG_MAX_TENSORS], asked[TG_MAX_TENSORS], nbytes;
    uint32_t inputs, outputs, flags, given, calls, nowhere[64];
    volatile uint32_t *words;
    unsigned char *shared;
    int socket, asks_before;
    double look;
};

static inline double tg_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline size_t tg_bytes(const struct tg_tensor *tensor) {
    static const size_t sizes[] = {1, 1, 2, 2, 0, 4, 4, 0, 8};
    size_t bytes = tensor->dtype < 9 ? sizes[tensor->dtype] : 0;
    for (uint32_t i = 0; i < tensor->rank && i < 8; i++)
        bytes *= tensor->shape[i];
    return bytes;
}

static inline void tg_unmap(struct tg_tap *tap) {
    if (tap->shared)
        munmap(tap->shared, tap->nbytes);
    tap->shared = NULL;
    tap->words = tap->nowhere; /* counters go on where nobody reads them */
    tap->nowhere[TG_WANTED] = tap->nowhere[TG_CALLS] = 0;
    tap->given = tap->calls = 0;
}

static inline void tg_forget(struct tg_tap *tap) {
    if (tap->socket >= 0)
        close(tap->socket);
    tap->socket = -1;
    tg_unmap(tap);
}

static inline void tg_tap_init(struct tg_tap *tap, const char *path, const char *name) {
    memset(tap, 0, sizeof *tap);
    strncpy(tap->path, path, sizeof tap->path - 1);
    strncpy(tap->name, name, sizeof tap->name - 1);
    tap->socket = -1;
    tg_unmap(tap);
}

/* 1 where the packet is on its way; a socket that is full is no reason to wait. */
static inline int tg_send(struct tg_tap *tap, uint32_t kind, uint32_t number, double a, double b, const void *more,
                          size_t length, int fd) {
    unsigned char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
    struct tg_head head = {kind, number, a, b};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)(uintptr_t)more, length}};
    struct msghdr message;
    if (tap->socket < 0)
        return 0;
    memset(&message, 0, sizeof message);
    message.msg_iov = parts;
    message.msg_iovlen = more ? 2 : 1;
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    }
    if (sendmsg(tap->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return 1;
    if (errno != EAGAIN && errno != EINTR)
        tg_forget(tap);
    return 0;
}

/* 1 for a packet, 0 for none, or for no agent any more. */
static inline int tg_receive(struct tg_tap *tap, struct tg_head *head) {
    unsigned char packet[TG_MAX_PACKET];
    if (tap->socket < 0)
        return 0;
    ssize_t length = recv(tap->socket, packet, sizeof packet, MSG_DONTWAIT);
    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (length < (ssize_t)sizeof *head) {
        tg_forget(tap);
        return 0;
    }
    memcpy(head, packet, sizeof *head);
    return 1;
}

static inline void tg_announce(struct tg_tap *tap) {
    struct { uint32_t inputs, outputs, flags, zero; char runtime[64], provider[64]; } told;
    unsigned char payload[sizeof told + sizeof tap->tensors];
    uint32_t count = tap->inputs + tap->outputs;
    size_t bytes = TG_HEADER_BYTES;
    if (tap->socket < 0 || !tap->inputs)
        return;
    tg_unmap(tap);
    for (uint32_t i = 0; i < count + tap->inputs; i++) {
        if (i < count)
            tap->offsets[i] = bytes;
        else
            tap->asked[i - count] = bytes;
        bytes += (tg_bytes(&tap->tensors[i < count ? i : i - count]) + 63) / 64 * 64;
    }
    int fd = memfd_create("tidegauge-tap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return;
    void *mapped = MAP_FAILED;
    if (!ftruncate(fd, (off_t)bytes) && !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) {
        tap->shared = (unsigned char *)mapped;
        tap->nbytes = bytes;
        tap->words = (volatile uint32_t *)mapped;
        tap->words[0] = TG_MAGIC;
        tap->words[1] = TG_VERSION;
        memset(&told, 0, sizeof told);
        told.inputs = tap->inputs;
        told.outputs = tap->outputs;
        told.flags = tap->flags;
        memcpy(told.runtime, tap->runtime, sizeof told.runtime);
        memcpy(told.provider, tap->provider, sizeof told.provider);
        memcpy(payload, &told, sizeof told);
        memcpy(payload + sizeof told, tap->tensors, count * sizeof *tap->tensors);
        tg_send(tap, TG_OPENED, 0, 0, 0, payload, sizeof told + count * sizeof *tap->tensors, fd);
    }
    close(fd);
}

/* `waiting`: seconds that the application waits now for the word that a session may be opened, 0 where it does not. */
static inline int tg_greet(struct tg_tap *tap, double waiting) {
    struct { uint32_t flags; char name[64]; } hello;
    hello.flags = (tap->run ? 1u : 0u) | (tap->close_session && tap->open_session ? 2u : 0u);
    hello.flags |= tap->asks_before ? 4u : 0u;
    memcpy(hello.name, tap->name, sizeof hello.name);
    return tg_send(tap, TG_HELLO, TG_VERSION, waiting, 0, &hello, sizeof hello, -1);
}

static inline void tg_connect(struct tg_tap *tap, double waiting) {
    struct sockaddr_un address;
    memset(&address, 0, sizeof address);
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, tap->path, sizeof tap->path);
    tap->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (tap->socket < 0 || connect(tap->socket, (struct sockaddr *)&address, sizeof address)) {
        tg_forget(tap);
        return;
    }
    if (tg_greet(tap, waiting))
        tg_announce(tap);
}

/* Wait for OPEN; 1 when it came before the deadline. */
static inline int tg_wait_open(struct tg_tap *tap, double deadline) {
    struct tg_head head;
    for (double left; tap->socket >= 0 && (left = deadline - tg_now()) > 0;) {
        struct pollfd waiting = {tap->socket, POLLIN, 0};
        poll(&waiting, 1, (int)(1000 * left) + 1);
        if (tg_receive(tap, &head) && head.kind == TG_OPEN)
            return 1;
    }
    return 0;
}

/* Wait until the agent says that a session may be opened: a capture may be under way, or be taken now, if it could not
 * be taken while the application held its session. Call it before each session that is opened. 0 where there was no word
 * (no agent, mostly). An agent that knows of nothing answers at once: 600 s cost nothing, and a capture that was put off
 * is not begun for one who waits less than it may take. */
static inline int tg_tap_before_opening(struct tg_tap *tap, double seconds) {
    double deadline = tg_now() + seconds;
    struct tg_head earlier;
    tap->asks_before = 1;
    tap->inputs = 0; /* the session that was, if one was: the next one tells its own tensors */
    if (tap->socket < 0)
        tg_connect(tap, seconds);
    else {
        while (tg_receive(tap, &earlier)) /* an earlier word is none to this question */
            if (earlier.kind == TG_RUN)
                tg_send(tap, TG_FAILED, earlier.number, 0, 0, NULL, 0, -1);
        tg_greet(tap, seconds);
    }
    return tg_wait_open(tap, deadline);
}

/* The session is open, with these tensors. 0, or -1 where they are too many. */
static inline int tg_tap_opened(struct tg_tap *tap, const struct tg_tensor *inputs, uint32_t input_count,
                                const struct tg_tensor *outputs, uint32_t output_count, const char *runtime,
                                const char *provider, int is_virtual) {
    if (!input_count || !output_count || input_count + output_count > TG_MAX_TENSORS)
        return -1;
    tap->inputs = input_count;
    tap->outputs = output_count;
    tap->flags = is_virtual ? 1 : 0;
    memcpy(tap->tensors, inputs, input_count * sizeof *inputs);
    memcpy(tap->tensors + input_count, outputs, output_count * sizeof *outputs);
    strncpy(tap->runtime, runtime, sizeof tap->runtime - 1);
    strncpy(tap->provider, provider, sizeof tap->provider - 1);
    if (tap->socket < 0)
        tg_connect(tap, 0);
    else
        tg_announce(tap);
    return 0;
}

static inline void tg_run_asked(struct tg_tap *tap, uint32_t number) {
    const void *inputs[TG_MAX_TENSORS];
    void *outputs[TG_MAX_TENSORS];
    if (!tap->run || !tap->shared) {
        tg_send(tap, TG_FAILED, number, 0, 0, NULL, 0, -1);
        return;
    }
    for (uint32_t i = 0; i < tap->inputs; i++)
        inputs[i] = tap->shared + tap->asked[i];
    for (uint32_t i = 0; i < tap->outputs; i++)
        outputs[i] = tap->shared + tap->offsets[tap->inputs + i];
    double began = tg_now();
    int failed = tap->run(tap->user, inputs, outputs);
    tg_send(tap, failed ? TG_FAILED : TG_RAN, number, tg_now() - began, 0, NULL, 0, -1);
}

static inline void tg_pause(struct tg_tap *tap, double seconds) {
    double deadline = tg_now() + seconds;
    if (!tap->close_session || !tap->open_session)
        return;
    tap->close_session(tap->user);
    tg_send(tap, TG_CLOSED, 0, 0, 0, NULL, 0, -1);
    if (!tg_wait_open(tap, deadline) && tap->socket < 0)
        sleep(5); /* an agent that died may leave a traced run behind, which ends by then */
    tap->open_session(tap->user);
    tg_announce(tap);
}

/* Answer the agent. For loops in which frames may be long in coming. */
static inline void tg_tap_poll(struct tg_tap *tap) {
    struct tg_head head;
    double now = tg_now();
    uint32_t calls = tap->words[TG_CALLS];
    if (now >= tap->look && tap->socket < 0)
        tg_connect(tap, 0);
    else if (calls == tap->calls && now < tap->look)
        return;
    if (now >= tap->look)
        tap->look = now + 1.0;
    tap->calls = calls; /* before the socket is emptied: what comes later is seen later */
    while (tg_receive(tap, &head)) {
        if (head.kind == TG_RUN)
            tg_run_asked(tap, head.number);
        else if (head.kind == TG_PAUSE)
            tg_pause(tap, head.a);
        else if (head.kind == TG_REFUSED) {
            tg_forget(tap);
            tap->look = now + 30.0; /* only a person can cure that */
        }
    }
}

/* One device run of `seconds`: what it was fed, and the answers, in the order of `tg_tap_opened`. */
static inline void tg_tap_frame(struct tg_tap *tap, const void *const *inputs, const void *const *outputs,
                                double seconds) {
    uint32_t wanted = tap->words[TG_WANTED];
    tap->words[TG_FRAMES] = tap->words[TG_FRAMES] + 1;
    tap->words[TG_MICROSECONDS] = tap->words[TG_MICROSECONDS] + (uint32_t)(1e6 * seconds);
    if (wanted && wanted != tap->given && tap->shared) {
        for (uint32_t i = 0; i < tap->inputs + tap->outputs; i++)
            memcpy(tap->shared + tap->offsets[i], i < tap->inputs ? inputs[i] : outputs[i - tap->inputs],
                   tg_bytes(&tap->tensors[i]));
        if (tg_send(tap, TG_GIVEN, wanted, seconds, tg_now(), NULL, 0, -1))
            tap->given = wanted;
        else
            tap->words[TG_DROPPED] = tap->words[TG_DROPPED] + 1;
    }
    tg_tap_poll(tap);
}

static inline void tg_tap_close(struct tg_tap *tap) { tg_forget(tap); }

#endif
