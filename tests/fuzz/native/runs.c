/* Runs of bytes at any bounds, for _bytes.c, _hash.c and _substr.c: runs SEED COUNT
 *
 * Python's and TensorFlow's functions are played by small ones. A run that is inside its page becomes
 * its bytes; one that is not is refused.
 */
#include "_substr.c"

#include "decoder.h"

#include <stdio.h>

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

/* Of _bytes.c, with Python's `bytes` as the size and the bytes. */
typedef struct { int64_t size; char bytes[]; } Made;
typedef struct {
  Made *(*new_bytes)(const char *, intptr_t);
  char *(*data)(Made *);
  void (*release)(Made *);
} Python;
extern int64_t make_bytes(const Python *, const char *page, int64_t size, const int64_t *starts,
                          const int64_t *lengths, int64_t count, Made **out, char **places);
extern void fill_bytes(const char *page, const int64_t *starts, const int64_t *lengths, int64_t count,
                       char *const *places);
extern int inside(int64_t size, const int64_t *starts, const int64_t *lengths, int64_t count);
extern void java_hash(const uint8_t *, const int64_t *starts, const int64_t *lengths, int64_t count,
                      const uint32_t *falling, uint32_t factor, uint32_t *out);
extern void row_hash(const uint8_t *, const int64_t *starts, const int64_t *lengths, int64_t count,
                     const uint64_t *rising, uint64_t factor, uint64_t *out);

static Made *new_bytes(const char *bytes, intptr_t size) {
  Made *made = malloc(sizeof *made + (size_t)size);
  made->size = size;
  if (bytes) memcpy(made->bytes, bytes, (size_t)size);
  return made;
}
static char *bytes_of(Made *made) { return made->bytes; }
static void release_bytes(Made *made) { free(made); }

typedef struct {
  char *page;
  int64_t size, count, starts[MOST_RUNS], lengths[MOST_RUNS];
} Runs;

static int64_t near(int64_t size, uint64_t *state) {
  static const int64_t far[] = {-1, INT64_MAX, INT64_MIN, INT32_MAX, (int64_t)1 << 32};
  if (draw(state) % 24 == 0) return far[below(state, 5)];
  return draw(state) % 8 ? below(state, size + 1) : size - 2 + below(state, 5);
}

static int is_inside(const Runs *runs, int64_t i, int64_t size) {
  return runs->starts[i] >= 0 && runs->lengths[i] >= 0 && runs->starts[i] <= size &&
         runs->lengths[i] <= size - runs->starts[i];
}

static void try_bytes(const Runs *runs, int are_long) {
  static const Python python = {new_bytes, bytes_of, release_bytes};
  Made *out[MOST_RUNS] = {0};
  char *places[MOST_RUNS];
  int64_t good = 0;
  while (good < runs->count && is_inside(runs, good, runs->size)) good++;
  int64_t made = make_bytes(&python, runs->page, runs->size, runs->starts, runs->lengths,
                            runs->count, out, are_long ? places : NULL);
  check(made == good, "bytes are made up to the first run that is not inside");
  if (are_long) fill_bytes(runs->page, runs->starts, runs->lengths, made, places);
  for (int64_t i = 0; i < made; i++) {
    check(out[i]->size == runs->lengths[i] &&
              !memcmp(out[i]->bytes, runs->page + runs->starts[i], (size_t)out[i]->size),
          "they are the bytes of the page");
    free(out[i]);
  }
}

static void try_hashes(const Runs *runs) {
  static uint32_t falling[1024], codes[MOST_RUNS];
  static uint64_t rising[513], hashes[MOST_RUNS];
  int all = 1;
  for (int64_t i = 0; i < runs->count; i++) all &= is_inside(runs, i, runs->size);
  check(inside(runs->size, runs->starts, runs->lengths, runs->count) == all, "inside is exact");
  if (!all) return;
  const uint8_t *page = (const uint8_t *)runs->page;
  java_hash(page, runs->starts, runs->lengths, runs->count, falling, 1, codes);
  row_hash(page, runs->starts, runs->lengths, runs->count, rising, 1, hashes);
}

static void try_texts(const Runs *runs, const Runs *second, uint64_t *state) {
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
    Runs runs[2];
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
    try_bytes(runs, draw(&state) % 2);
    try_hashes(runs);
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
