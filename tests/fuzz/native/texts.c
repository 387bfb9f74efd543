/* Runs of bytes at any bounds, for TensorFlow's op in strings.c: texts SEED COUNT
 *
 * TensorFlow's functions are played by small ones. A run that is inside its page becomes its bytes;
 * one that is not is refused.
 */
#include "strings.c"

#include <stdio.h>

/* The next of a series of random numbers. */
static uint64_t draw(uint64_t *state) {
  uint64_t value = *state += 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

static int64_t below(uint64_t *state, int64_t limit) {
  return limit < 1 ? 0 : (int64_t)(draw(state) % (uint64_t)limit);
}

enum { MOST_RUNS = 6, MOST_PAGE = 3000 };

struct TF_Status { int code; };
struct TF_Tensor { void *data; int64_t count; };
struct TF_OpKernelContext { TF_Tensor in[INPUTS], out; };

static void check(int holds, const char *law) {
  if (holds) return;
  fprintf(stderr, "broken: %s\n", law);
  abort();
}

static TF_Status *new_status(void) { return calloc(1, sizeof(TF_Status)); }
static void delete_status(TF_Status *status) { free(status); }
static void set_status(TF_Status *status, int code, const char *message) {
  (void)message;
  status->code = code;
}
static int get_code(const TF_Status *status) { return status->code; }
static TF_Tensor *handle(const TF_Tensor *of) {
  TF_Tensor *made = malloc(sizeof *made);
  *made = *of;
  return made;
}
static void input(Context *context, int i, TF_Tensor **out, TF_Status *status) {
  (void)status;
  *out = handle(context->in + i);
}
static TF_Tensor *output(Context *context, int i, int type, const int64_t *dims, int rank,
                         size_t nbytes, TF_Status *status) {
  (void)i, (void)type, (void)rank, (void)status;
  context->out = (TF_Tensor){calloc(1, nbytes + 1), dims[0]};
  return handle(&context->out);
}
static void fail(Context *context, TF_Status *status) {
  (void)status;
  context->out.count = -1;
}
static void *data_of(const TF_Tensor *tensor) { return tensor->data; }
static int64_t count_of(const TF_Tensor *tensor) { return tensor->count; }
static void delete_tensor(TF_Tensor *tensor) { free(tensor); }

/* What registers the op is not called. */
int _PyArg_ParseTuple_SizeT(PyObject *args, const char *format, ...) {
  (void)args, (void)format;
  return 0;
}
PyObject *PyLong_FromLongLong(long long value) {
  (void)value;
  return NULL;
}
void *library_of(const char *path) {
  (void)path;
  return NULL;
}
void *function_of(void *library, const char *name) {
  (void)library, (void)name;
  return NULL;
}

typedef struct {
  char *page;
  int64_t size, count, starts[MOST_RUNS], lengths[MOST_RUNS];
} Case;

static int64_t near(int64_t size, uint64_t *state) {
  static const int64_t far[] = {-1, INT64_MAX, INT64_MIN, INT32_MAX, (int64_t)1 << 32};
  if (draw(state) % 24 == 0) return far[below(state, 5)];
  return draw(state) % 8 ? below(state, size + 1) : size - 2 + below(state, 5);
}

static int is_inside(const Case *runs, int64_t i, int64_t size) {
  return runs->starts[i] >= 0 && runs->lengths[i] >= 0 && runs->starts[i] <= size &&
         runs->lengths[i] <= size - runs->starts[i];
}

static void try_texts(const Case *runs, const Case *second, uint64_t *state) {
  int64_t mode = below(state, 3), count = runs->count;
  Context context = {{{runs->page, runs->size}, {second->page, second->size},
                      {(void *)runs->starts, count}, {(void *)runs->lengths, count}, {&mode, 1}},
                     {NULL, 0}};
  if (draw(state) % 16 == 0) context.in[2 + below(state, 3)].count--;
  int whole = context.in[2].count == count && context.in[3].count == count && context.in[4].count == 1;
  compute(NULL, &context);
  String *texts = context.out.data;
  for (int64_t i = 0; texts && context.out.count > 0 && i < count; i++) {
    const char *from = is_inside(runs, i, runs->size) ? runs->page + runs->starts[i]
                                                      : second->page + (runs->starts[i] - runs->size);
    int kind = texts[i].small.size & 3;
    size_t size = kind ? texts[i].large.size >> 2 : (size_t)texts[i].small.size >> 2;
    const char *bytes = kind == LARGE ? texts[i].large.bytes
                        : kind == VIEW ? texts[i].view.bytes : texts[i].small.bytes;
    check(whole && (int64_t)size == runs->lengths[i], "a text has its length");
    check(!memcmp(bytes, from, size), "a text has its bytes");
    if (kind == LARGE) free(texts[i].large.bytes);
    if (kind == VIEW) texts[i].view.owner->unref(texts[i].view.owner);
  }
  free(context.out.data);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  uint64_t seed = strtoull(argv[1], NULL, 10);
  long long count = atoll(argv[2]);
  tf = (Functions){.new_status = new_status, .delete_status = delete_status,
                   .set_status = set_status, .get_code = get_code, .input = input,
                   .output = output, .fail = fail, .data = data_of, .count = count_of,
                   .delete_tensor = delete_tensor};
  for (long long number = 0; number < count; number++) {
    uint64_t state = seed * 1000003u + (uint64_t)number;
    Case runs[2];
    for (int i = 0; i < 2; i++) {
      runs[i].size = below(&state, draw(&state) % 2 ? 40 : MOST_PAGE);
      runs[i].page = malloc((size_t)runs[i].size + !runs[i].size);
      for (int64_t at = 0; at < runs[i].size; at++) runs[i].page[at] = (char)(at * 7 + i);
      runs[i].count = below(&state, MOST_RUNS + 1);
      for (int64_t k = 0; k < runs[i].count; k++) {
        runs[i].starts[k] = near(runs[i].size, &state);
        runs[i].lengths[k] = draw(&state) % 2 ? below(&state, 40) : near(runs[i].size, &state);
      }
    }
    for (int64_t k = 0; k < runs->count; k++) /* also in the second */
      if (draw(&state) % 3 == 0 && runs->starts[k] >= 0 && runs->starts[k] < MOST_PAGE)
        runs->starts[k] += runs->size;
    try_texts(runs, runs + 1, &state);
    free(runs[0].page);
    free(runs[1].page);
  }
  printf("%lld inputs of seed %llu\n", count, (unsigned long long)seed);
  return 0;
}
