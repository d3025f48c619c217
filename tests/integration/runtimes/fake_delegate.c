/* A TFLite external delegate that behaves like TI's on a good and on a bad day (a fake of the accelerator, and named so).
 *
 * The interface is that of TFLite's external_delegate_interface.h; of common.h only what is used is declared, with the
 * layout that the C ABI fixes. TIDEGAUGE_DELEGATE_MODE: compute, nothing, sleep, exit, zeros, stamped_zeros, refuse, prepare_error,
 * invoke_error. TIDEGAUGE_DELEGATE_RECORD: file for the options. The lines on stdout are those of TI's delegate.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int Status; /* 0 ok, 1 error, 2 delegate error */
typedef struct { int size; int data[]; } IntArray;
typedef struct Tensor {
  int type;
  union { float *f; void *raw; } data;
  IntArray *dims;
  struct { float scale; int32_t zero_point; } params;
  int allocation_type;
  size_t bytes;
  const void *allocation;
  const char *name;
  void *delegate;
  int buffer_handle;
  char data_is_stale, is_variable;
  struct { int type; void *params; } quantization;
  void *sparsity;
  const IntArray *dims_signature;
} Tensor;
typedef struct Context Context;
typedef struct { IntArray *inputs, *outputs; /* the rest is not read */ } Node;
typedef struct Delegate Delegate;
typedef struct {
  void *(*init)(Context *, const char *, size_t);
  void (*free)(Context *, void *);
  Status (*prepare)(Context *, Node *);
  Status (*invoke)(Context *, Node *);
  const char *(*profiling_string)(const Context *, const Node *);
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *registration_external;
  void *(*async_kernel)(Context *, Node *);
  uint64_t inplace_operator;
} Registration;
struct Context {
  size_t tensors_size;
  Status (*GetExecutionPlan)(Context *, IntArray **);
  Tensor *tensors;
  void *impl;
  Status (*ResizeTensor)(Context *, Tensor *, IntArray *);
  void (*ReportError)(Context *, const char *, ...);
  Status (*AddTensors)(Context *, int, int *);
  Status (*GetNodeAndRegistration)(Context *, int, Node **, Registration **);
  Status (*ReplaceNodeSubsetsWithDelegateKernels)(Context *, Registration, const IntArray *, Delegate *);
};
struct Delegate {
  void *data;
  Status (*Prepare)(Context *, Delegate *);
  void *copy_from, *copy_to, *free_handle;
  int64_t flags;
  void *opaque_builder;
};

static const char *mode(void) {
  const char *told = getenv("TIDEGAUGE_DELEGATE_MODE");
  return told ? told : "compute";
}
static int is(const char *word) { return strcmp(mode(), word) == 0; }

static uint64_t stamps[2]; /* proc_start, proc_end of the last invoke, ns; zero where nothing was created */
uint64_t tidegauge_stamp(int which) { return stamps[which]; }
static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *kernel_init(Context *context, const char *buffer, size_t length) {
  (void)context, (void)buffer, (void)length;
  printf("\n ****** In tidlDelegate::Init ****** \n************ in TIDL_subgraphRtCreate ************ \n");
  if (is("zeros") || is("stamped_zeros")) /* TI's Init ignores what create returns, and answers OK */
    printf("TIDL_RT_OVX: ERROR: Config file size (37272 bytes) does not match size of sTIDL_IOBufDesc_t (94616 bytes)\n");
  fflush(stdout);
  return malloc(1);
}
static void kernel_free(Context *context, void *buffer) { (void)context, free(buffer); }
static Status kernel_prepare(Context *context, Node *node) { (void)context, (void)node; return 0; }

static Status kernel_invoke(Context *context, Node *node) {
  if (is("invoke_error")) {
    printf("TIDL Compute Invoke Failed.\n");
    fflush(stdout);
    return 1;
  }
  const Tensor *in = &context->tensors[node->inputs->data[0]];
  for (int i = 0; i < node->outputs->size; i++) {
    Tensor *out = &context->tensors[node->outputs->data[i]];
    memset(out->data.raw, 0, out->bytes);
    if (is("zeros")) continue;
    stamps[0] = now();
    stamps[1] = stamps[0] + 1;
    if (is("stamped_zeros")) continue;
    for (size_t k = 0; k < out->bytes / sizeof(float); k++) out->data.f[k] = in->data.f[k % (in->bytes / sizeof(float))];
    stamps[1] = now() + 1;
  }
  return 0;
}

static Status prepare(Context *context, Delegate *delegate) {
  IntArray *plan = NULL;
  printf("\n ****** In DelegatePrepare ****** \n");
  fflush(stdout);
  if (context->GetExecutionPlan(context, &plan) != 0) return 1;
  if (is("sleep"))
    for (;;) pause();
  if (is("prepare_error")) return 1;
  const int claimed = is("nothing") ? 0 : plan->size;
  printf(" Number of subgraphs:%d , %d nodes delegated out of %d nodes  \n", claimed ? 1 : 0, claimed, plan->size);
  fflush(stdout);
  if (claimed == 0) return 0;
  const Registration kernel = {.init = kernel_init, .free = kernel_free, .prepare = kernel_prepare,
                               .invoke = kernel_invoke, .custom_name = "TIDLDelegate", .version = 1};
  return context->ReplaceNodeSubsetsWithDelegateKernels(context, kernel, plan, delegate);
}

Delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count, void (*report)(const char *)) {
  const char *record = getenv("TIDEGAUGE_DELEGATE_RECORD");
  if (record) {
    FILE *file = fopen(record, "w");
    if (!file) abort();
    for (size_t i = 0; i < count; i++) fprintf(file, "%s=%s\n", keys[i], values[i]);
    fclose(file);
  }
  if (is("exit")) {
    printf("ERROR : artifacts_folder not a directory\n");
    fflush(stdout);
    exit(-1);
  }
  if (is("refuse")) {
    report("artifacts_folder must be provided");
    return NULL;
  }
  Delegate *delegate = calloc(1, sizeof *delegate);
  delegate->Prepare = prepare;
  return delegate;
}
void tflite_plugin_destroy_delegate(Delegate *delegate) { free(delegate); }
