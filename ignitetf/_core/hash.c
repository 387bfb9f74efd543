/* Hashes of many runs of bytes: Java's array hash, `31 * h + b` from 1 over signed bytes, and the
 * hashes for the checksum of rows.
 *
 * checksum.py -> this
 *
 * Computed byte by byte, each step of Java's hash waits for the step before. Here a thousand bytes
 * are one dot product with the powers of 31, which the compiler turns into vector instructions. The
 * sums are then chained.
 */
#include "functions.h"

enum {
  WIDTH = 1024, /* bytes of one sum; their weights fit into the first-level cache */
  WORDS = 512   /* words of one sum */
};
/* Base of the row hash; any large, random-looking odd number would do. */
#define ROW_BASE 0x9E3779B97F4A7C15u
#define JAVA_BASE 31u

#define INLINE static inline __attribute__((always_inline))

/* Eight bytes at any address. */
typedef uint64_t word __attribute__((aligned(1), may_alias));

static uint32_t falling[WIDTH];       /* 31^(WIDTH-1) to 31^0 */
static uint32_t java_factor;          /* 31^WIDTH */
static uint64_t rising[WORDS + 1];    /* 1, r, r^2, ... */
static uint64_t row_factor;           /* r^WORDS */

/* Each loop is compiled for each kind of processor, and the fastest supported one is used. This does
 * not use `target_clones`: with Zig's library Clang only finds the first clone, and musl does not
 * support functions that the loader selects. */
enum { ANY, AVX2, AVX512 };
static int here = ANY, processor = ANY;

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#define TARGET(features) __attribute__((target(features)))
#define FOR_EACH_PROCESSOR(name, parameters, arguments)                  \
  TARGET("avx512f,avx512bw,avx512cd,avx512dq,avx512vl")                  \
  static void name##_avx512 parameters { name##_any arguments; }         \
  TARGET("avx2") static void name##_avx2 parameters { name##_any arguments; } \
  static void name parameters {                                          \
    if (processor == AVX512)                                             \
      name##_avx512 arguments;                                           \
    else if (processor == AVX2)                                          \
      name##_avx2 arguments;                                             \
    else                                                                 \
      name##_any arguments;                                              \
  }

/* Feature bits of the processor, and bits of XCR0: the registers that the system saves. */
#define HAS_AVX512 (1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31) /* F, DQ, CD, BW, VL */
#define HAS_AVX2 (1u << 5)
#define SAVES_AVX 0x06u
#define SAVES_AVX512 0xE6u

static int kind_of_processor(void) {
  uint32_t a, features, c, d, saved, high;
  if (!__get_cpuid(1, &a, &features, &c, &d) || !(c & bit_OSXSAVE)) return ANY;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &features, &c, &d)) return ANY;
  if ((saved & SAVES_AVX512) == SAVES_AVX512 && (features & HAS_AVX512) == HAS_AVX512) return AVX512;
  return (saved & SAVES_AVX) == SAVES_AVX && features & HAS_AVX2 ? AVX2 : ANY;
}
#else
#define FOR_EACH_PROCESSOR(name, parameters, arguments) \
  static void name parameters { name##_any arguments; }
static int kind_of_processor(void) { return ANY; }
#endif

void begin_hash(void) {
  uint32_t java = 1;
  for (int i = WIDTH - 1; i >= 0; i--, java *= JAVA_BASE) falling[i] = java;
  java_factor = java;
  uint64_t row = 1;
  for (int i = 0; i <= WORDS; i++, row *= ROW_BASE) rising[i] = row;
  row_factor = rising[WORDS];
  here = processor = kind_of_processor();
}

INLINE uint32_t sum(const int8_t *bytes, const uint32_t *weights, int64_t count) {
  uint32_t total = 0;
  for (int64_t i = 0; i < count; i++) total += weights[i] * (uint32_t)(int32_t)bytes[i];
  return total;
}

INLINE uint64_t word_sum(const word *words, int64_t count) {
  uint64_t total = 0;
  for (int64_t i = 0; i < count; i++) total += rising[i] * words[i];
  return total;
}

/* Returns Java's hash, extended by `count` more bytes. */
INLINE uint32_t java_more(uint32_t hash, const uint8_t *more, int64_t count) {
  const int8_t *at = (const int8_t *)more;
  for (; count >= WIDTH; at += WIDTH, count -= WIDTH)
    hash = hash * java_factor + sum(at, falling, WIDTH);
  return hash * falling[WIDTH - 1 - count] + sum(at, falling + WIDTH - count, count);
}

INLINE void java_runs_any(const Runs *runs, uint32_t *out) {
  for (int64_t i = 0; i < runs->count; i++)
    out[i] = java_more(1, run_at(runs, i), run_length(runs, i));
}

FOR_EACH_PROCESSOR(java_runs, (const Runs *runs, uint32_t *out), (runs, out))

/* Returns the last `count` < 8 bytes as a word. It copies in fixed steps, because a copy of unknown
 * length would be a function call. */
INLINE uint64_t rest(const uint8_t *at, int64_t count) {
  uint32_t four = 0;
  uint16_t two = 0;
  uint64_t last = 0;
  if (count & 1) last = at[count - 1];
  if (count & 2) {
    memcpy(&two, at + (count & 4), 2);
    last = last << 16 | two;
  }
  if (count & 4) {
    memcpy(&four, at, 4);
    last = last << 32 | four;
  }
  return last;
}

/* Returns a number in which every input bit affects all bits. */
INLINE uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

INLINE void mix_any(const uint64_t *values, int64_t count, uint64_t salt, uint64_t *out) {
  for (int64_t i = 0; i < count; i++) out[i] = mixed(values[i] ^ salt);
}

FOR_EACH_PROCESSOR(mix, (const uint64_t *values, int64_t count, uint64_t salt, uint64_t *out),
                   (values, count, salt, out))

/* Returns the sum of the last bytes of a run, fewer than 8 * WORDS; weights begin with `scale`. */
INLINE uint64_t last_sum(const uint8_t *at, int64_t count, uint64_t scale) {
  int64_t words = count / 8;
  uint64_t whole = word_sum((const word *)at, words);
  return scale * (whole + rising[words] * rest(at + 8 * words, count % 8));
}

/* Computes for each run the mixed sum of its length and its weighted words. Words are little endian,
 * the last one is filled with zeros, and the weights are 1, r, r^2, ... */
INLINE void row_runs_any(const Runs *runs, uint64_t *out) {
  for (int64_t i = 0; i < runs->count; i++) {
    const uint8_t *at = run_at(runs, i);
    int64_t left = run_length(runs, i);
    uint64_t total = (uint64_t)left, scale = 1;
    for (; left >= 8 * WORDS; left -= 8 * WORDS, at += 8 * WORDS, scale *= row_factor)
      total += scale * word_sum((const word *)at, WORDS);
    out[i] = mixed(total + last_sum(at, left, scale));
  }
}

FOR_EACH_PROCESSOR(row_runs, (const Runs *runs, uint64_t *out), (runs, out))

/* Prefetches 8 * WORDS bytes, because processors prefetch only within a page of 4 KB. */
INLINE void ahead(const uint8_t *at) {
#ifdef __GNUC__
  for (int64_t i = 0; i < 8 * WORDS; i += 64) __builtin_prefetch(at + i);
#endif
}

/* Computes both hashes at once, so that large rows are loaded from memory only once. */
INLINE void both_runs_any(const Runs *runs, uint32_t *codes, uint64_t *out) {
  for (int64_t i = 0; i < runs->count; i++) {
    const uint8_t *at = run_at(runs, i);
    int64_t left = run_length(runs, i);
    uint64_t total = (uint64_t)left, scale = 1;
    uint32_t code = 1;
    for (; left >= 8 * WORDS; left -= 8 * WORDS, at += 8 * WORDS, scale *= row_factor) {
      ahead(at + 16 * WORDS);
      total += scale * word_sum((const word *)at, WORDS);
      code = java_more(code, at, 8 * WORDS);
    }
    codes[i] = java_more(code, at, left);
    out[i] = mixed(total + last_sum(at, left, scale));
  }
}

FOR_EACH_PROCESSOR(both_runs, (const Runs *runs, uint32_t *codes, uint64_t *out), (runs, codes, out))

/* ---- functions of the module ---- */

enum Which { JAVA, ROW, BOTH };

static void hash(enum Which which, const Runs *runs, Py_buffer *out, Py_buffer *more) {
  PyThreadState *state = runs->nbytes > MANY_BYTES ? PyEval_SaveThread() : NULL;
  if (which == JAVA) java_runs(runs, out->buf);
  if (which == ROW) row_runs(runs, out->buf);
  if (which == BOTH) both_runs(runs, out->buf, more->buf);
  if (state) PyEval_RestoreThread(state);
}

/* hash_runs(page, starts, lengths, out) */
static PyObject *of_runs(PyObject *args, enum Which which) {
  Py_buffer views[4] = {0};
  Runs runs;
  if (!PyArg_ParseTuple(args, "y*y*y*w*", views, views + 1, views + 2, views + 3)) return NULL;
  int failed = find_runs(&runs, views, views + 1, views + 2) ||
               holds(views + 3, runs.count, which == JAVA ? 4 : 8);
  if (!failed) hash(which, &runs, views + 3, NULL);
  release_all(views, 4);
  if (failed) return NULL;
  Py_RETURN_NONE;
}

/* Makes runs from the rows of a two-dimensional array of bytes; each row is contiguous. */
static int find_rows(Runs *runs, const Py_buffer *rows) {
  if (rows->ndim != 2 || rows->itemsize != 1 || !rows->shape || !rows->strides ||
      (rows->shape[1] > 1 && rows->strides[1] != 1)) {
    PyErr_SetString(PyExc_ValueError, "rows are an array of bytes, of two dimensions, row by row");
    return -1;
  }
  int64_t count = rows->shape[0], width = rows->shape[1];
  *runs = (Runs){rows->buf, NULL, NULL, count, width, rows->strides[0], rows->len};
  return 0;
}

/* hash_rows(rows, out), and the variant with two results */
static PyObject *of_rows(PyObject *args, enum Which which) {
  PyObject *given;
  Py_buffer views[3] = {0};
  Runs runs;
  int parsed = which == BOTH ? PyArg_ParseTuple(args, "Ow*w*", &given, views + 1, views + 2)
                             : PyArg_ParseTuple(args, "Ow*", &given, views + 1);
  if (!parsed) return NULL;
  int failed = PyObject_GetBuffer(given, views, PyBUF_STRIDES) || find_rows(&runs, views) ||
               holds(views + 1, runs.count, which == ROW ? 8 : 4) ||
               (which == BOTH && holds(views + 2, runs.count, 8));
  if (!failed) hash(which, &runs, views + 1, views + 2);
  release_all(views, 3);
  if (failed) return NULL;
  Py_RETURN_NONE;
}

static PyObject *hash_runs(PyObject *self, PyObject *args) {
  (void)self;
  return of_runs(args, JAVA);
}
static PyObject *hash_rows(PyObject *self, PyObject *args) {
  (void)self;
  return of_rows(args, JAVA);
}
static PyObject *row_hash_runs(PyObject *self, PyObject *args) {
  (void)self;
  return of_runs(args, ROW);
}
static PyObject *row_hash_rows(PyObject *self, PyObject *args) {
  (void)self;
  return of_rows(args, ROW);
}
static PyObject *both_hashes(PyObject *self, PyObject *args) {
  (void)self;
  return of_rows(args, BOTH);
}

/* mix(values, salt, out): uint64 */
static PyObject *mix_numbers(PyObject *self, PyObject *args) {
  Py_buffer views[2] = {0};
  unsigned long long salt;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*Kw*", views, &salt, views + 1)) return NULL;
  int64_t count = views[0].len / 8;
  int failed = holds(views, count, 8) || holds(views + 1, count, 8);
  if (!failed) {
    PyThreadState *state = views[0].len > MANY_BYTES ? PyEval_SaveThread() : NULL;
    mix(views[0].buf, count, salt, views[1].buf);
    if (state) PyEval_RestoreThread(state);
  }
  release_all(views, 2);
  if (failed) return NULL;
  Py_RETURN_NONE;
}

/* hash_as(kind): use the loops of an older kind of processor; 0 for the loops that run on any.
 * Returns the kind of this processor. */
static PyObject *hash_as(PyObject *self, PyObject *args) {
  int kind;
  (void)self;
  if (!PyArg_ParseTuple(args, "i", &kind)) return NULL;
  processor = kind < ANY ? ANY : kind > here ? here : kind;
  return PyLong_FromLongLong(here);
}

PyMethodDef hash_methods[] = {{"hash_runs", hash_runs, METH_VARARGS, NULL},
                              {"hash_rows", hash_rows, METH_VARARGS, NULL},
                              {"row_hash_runs", row_hash_runs, METH_VARARGS, NULL},
                              {"row_hash_rows", row_hash_rows, METH_VARARGS, NULL},
                              {"both_hashes", both_hashes, METH_VARARGS, NULL},
                              {"mix", mix_numbers, METH_VARARGS, NULL},
                              {"hash_as", hash_as, METH_VARARGS, NULL},
                              {NULL, NULL, 0, NULL}};
