/* An application in C for the test: output = input + 1; it says on stdout what it was asked for. */
#include "tidegauge_tap.h"

#include <stdio.h>

enum { COUNT = 12 };
static float input[COUNT], output[COUNT];

static void add(const float *from, float *to) {
    for (int i = 0; i < COUNT; i++)
        to[i] = from[i] + 1;
}
static int run(void *user, const void *const *inputs, void *const *outputs) {
    (void)user;
    add((const float *)inputs[0], (float *)outputs[0]);
    return 0;
}
static void closed(void *user) {
    (void)user;
    puts("closed");
}
static void opened(void *user) {
    (void)user;
    puts("opened");
}

int main(int count, char **words) {
    struct tg_tensor in[] = {{"input", TG_FLOAT32, 4, {1, 3, 2, 2}}}, out[] = {{"output", TG_FLOAT32, 4, {1, 3, 2, 2}}};
    const void *inputs[] = {input}, *outputs[] = {output};
    struct tg_tap tap;
    if (count < 2)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    tg_tap_init(&tap, words[1], "loop in C");
    if (count > 2) /* an application that only asks before it opens its session */
        printf("%s\n", tg_tap_before_opening(&tap, 60) ? "may open" : "no word");
    else {
        tap.run = run;
        tap.close_session = closed;
        tap.open_session = opened;
    }
    if (tg_tap_opened(&tap, in, 1, out, 1, "none", "CPU", 1))
        return 2;
    for (double end = tg_now() + 120; tg_now() < end;) {
        for (int i = 0; i < COUNT; i++)
            input[i] += 1;
        add(input, output);
        tg_tap_frame(&tap, inputs, outputs, 0.002);
        usleep(2000);
    }
    return 0;
}
