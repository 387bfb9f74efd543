/* Hashes of many runs of bytes: Java's array hash, `31 * h + b` from 1 over signed bytes, and those
 * that the checksum of rows is made of.
 *
 * fasthash.py (ctypes) -> this
 *
 * Byte by byte each step of Java's waits for the one before. Here a thousand bytes are one dot
 * product with the powers of 31, which the compiler turns into vector instructions, and the sums
 * are chained. NumPy needs many calls for the words of a long row.
 */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define WIDTH 1024 /* bytes of one sum: their weights stay in the first-level cache */
#define WORDS 512  /* and words */

#define INLINE static inline __attribute__((always_inline))

/* Eight bytes wherever they lie. */
typedef uint64_t word __attribute__((aligned(1), may_alias));

/* What is exported is built for each kind of processor, and the library takes the one that fits
 * when it is loaded. Not by `target_clones`: Clang finds none but the first with Zig's library, and
 * musl has no functions that are chosen by the loader. */
#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#define TARGET(features) __attribute__((target(features)))
#define FOR_EACH_PROCESSOR(name, parameters, arguments)                                      \
  TARGET("avx512f,avx512bw,avx512cd,avx512dq,avx512vl")                                      \
  static void name##_avx512 parameters { name##_any arguments; }                             \
  TARGET("avx2") static void name##_avx2 parameters { name##_any arguments; }                \
  EXPORT void name parameters                                                                \
  {                                                                                          \
    if (processor == AVX512)                                                                 \
      name##_avx512 arguments;                                                               \
    else if (processor == AVX2)                                                              \
      name##_avx2 arguments;                                                                 \
    else                                                                                     \
      name##_any arguments;                                                                  \
  }

enum { ANY, AVX2, AVX512 };
EXPORT int processor = ANY; /* tests set it lower */

/* Bits of the processor, and of XCR0, that tell which registers the system saves. */
#define HAS_AVX512 (1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31) /* F, DQ, CD, BW, VL */
#define HAS_AVX2 (1u << 5)
#define SAVES_AVX 0x06u
#define SAVES_AVX512 0xE6u

__attribute__((constructor)) static void
look_at_processor(void)
{
  uint32_t a, features, c, d, saved, high;
  if (!__get_cpuid(1, &a, &features, &c, &d) || !(c & bit_OSXSAVE))
    return;
  __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &features, &c, &d))
    return;
  if ((saved & SAVES_AVX) == SAVES_AVX && features & HAS_AVX2)
    processor = AVX2;
  if ((saved & SAVES_AVX512) == SAVES_AVX512 && (features & HAS_AVX512) == HAS_AVX512)
    processor = AVX512;
}
#else
#define FOR_EACH_PROCESSOR(name, parameters, arguments) \
  EXPORT void name parameters { name##_any arguments; }
#endif

/* Whether all runs are inside of `size` bytes. */
EXPORT int
inside(int64_t size, const int64_t *starts, const int64_t *lengths, int64_t count)
{
  for (int64_t i = 0; i < count; i++)
    if (starts[i] < 0 || lengths[i] < 0 || lengths[i] > size - starts[i])
      return 0;
  return 1;
}

INLINE uint32_t
sum(const int8_t *bytes, const uint32_t *weights, int64_t count)
{
  uint32_t total = 0;
  for (int64_t i = 0; i < count; i++)
    total += weights[i] * (uint32_t)(int32_t)bytes[i];
  return total;
}

INLINE uint64_t
word_sum(const word *words, const uint64_t *weights, int64_t count)
{
  uint64_t total = 0;
  for (int64_t i = 0; i < count; i++)
    total += weights[i] * words[i];
  return total;
}

/* Java's hash of some bytes, and of `count` more. `falling` are the WIDTH powers 31^(WIDTH-1) to
 * 31^0, `factor` is 31^WIDTH. */
INLINE uint32_t
java_more(uint32_t hash, const uint8_t *more, int64_t count, const uint32_t *falling,
          uint32_t factor)
{
  const int8_t *at = (const int8_t *)more;
  for (; count >= WIDTH; at += WIDTH, count -= WIDTH)
    hash = hash * factor + sum(at, falling, WIDTH);
  return hash * falling[WIDTH - 1 - count] + sum(at, falling + WIDTH - count, count);
}

INLINE void
java_hash_any(const uint8_t *data, const int64_t *starts, const int64_t *lengths, int64_t count,
          const uint32_t *falling, uint32_t factor, uint32_t *out)
{
  for (int64_t i = 0; i < count; i++)
    out[i] = java_more(1, data + starts[i], lengths[i], falling, factor);
}

FOR_EACH_PROCESSOR(
    java_hash,
    (const uint8_t *data, const int64_t *starts, const int64_t *lengths, int64_t count,
     const uint32_t *falling, uint32_t factor, uint32_t *out),
    (data, starts, lengths, count, falling, factor, out))

/* The last, `count` < 8 bytes as a word. By steps, as a copy of unknown length is a call. */
INLINE uint64_t
rest(const uint8_t *at, int64_t count)
{
  uint32_t four = 0;
  uint16_t two = 0;
  uint64_t last = 0;
  if (count & 1)
    last = at[count - 1];
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

/* The number with every bit spread over all bits. */
INLINE uint64_t
mixed(uint64_t value)
{
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

INLINE void
mix_any(const uint64_t *values, int64_t count, uint64_t salt, uint64_t *out)
{
  for (int64_t i = 0; i < count; i++)
    out[i] = mixed(values[i] ^ salt);
}

FOR_EACH_PROCESSOR(
    mix,
    (const uint64_t *values, int64_t count, uint64_t salt, uint64_t *out),
    (values, count, salt, out))

/* The last, less than 8 * WORDS bytes of a run, whose weights begin with `scale`. */
INLINE uint64_t
last_sum(const uint8_t *at, int64_t count, const uint64_t *rising, uint64_t scale)
{
  int64_t words = count / 8;
  return scale * (word_sum((const word *)at, rising, words) +
                  rising[words] * rest(at + 8 * words, count % 8));
}

/* Of each run the mixed sum of its length and its little-endian words, the last one filled up with
 * zeros, these with the weights 1, r, r^2, ...: `rising` are the first WORDS of them, `factor` is
 * the next. */
INLINE void
row_hash_any(const uint8_t *data, const int64_t *starts, const int64_t *lengths, int64_t count,
          const uint64_t *rising, uint64_t factor, uint64_t *out)
{
  for (int64_t i = 0; i < count; i++) {
    const uint8_t *at = data + starts[i];
    uint64_t total = (uint64_t)lengths[i], scale = 1;
    int64_t left = lengths[i];
    for (; left >= 8 * WORDS; left -= 8 * WORDS, at += 8 * WORDS, scale *= factor)
      total += scale * word_sum((const word *)at, rising, WORDS);
    out[i] = mixed(total + last_sum(at, left, rising, scale));
  }
}

FOR_EACH_PROCESSOR(
    row_hash,
    (const uint8_t *data, const int64_t *starts, const int64_t *lengths, int64_t count,
     const uint64_t *rising, uint64_t factor, uint64_t *out),
    (data, starts, lengths, count, rising, factor, out))

/* Have 8 * WORDS bytes on their way from memory: processors look ahead within a page of 4 KB. */
INLINE void
ahead(const uint8_t *at)
{
#ifdef __GNUC__
  for (int64_t i = 0; i < 8 * WORDS; i += 64)
    __builtin_prefetch(at + i);
#endif
}

/* Both of `count` rows that lie one behind the other: large ones come from memory once. */
INLINE void
both_hashes_any(const uint8_t *at, int64_t count, int64_t width, const uint32_t *falling,
            uint32_t java_factor, const uint64_t *rising, uint64_t row_factor, uint32_t *codes,
            uint64_t *out)
{
  for (int64_t i = 0; i < count; i++) {
    uint64_t total = (uint64_t)width, scale = 1;
    uint32_t code = 1;
    int64_t left = width;
    for (; left >= 8 * WORDS; left -= 8 * WORDS, at += 8 * WORDS, scale *= row_factor) {
      ahead(at + 16 * WORDS);
      total += scale * word_sum((const word *)at, rising, WORDS);
      code = java_more(code, at, 8 * WORDS, falling, java_factor);
    }
    codes[i] = java_more(code, at, left, falling, java_factor);
    out[i] = mixed(total + last_sum(at, left, rising, scale));
    at += left;
  }
}

FOR_EACH_PROCESSOR(
    both_hashes,
    (const uint8_t *at, int64_t count, int64_t width, const uint32_t *falling,
     uint32_t java_factor, const uint64_t *rising, uint64_t row_factor, uint32_t *codes, uint64_t *out),
    (at, count, width, falling, java_factor, rising, row_factor, codes, out))
