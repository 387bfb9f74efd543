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

/* Built once for each kind of processor; the loader takes the one that fits. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

#define INLINE static inline __attribute__((always_inline))

/* Eight bytes wherever they lie. */
typedef uint64_t word __attribute__((aligned(1), may_alias));

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

EXPORT FOR_EACH_PROCESSOR void
java_hash(const uint8_t *data, const int64_t *starts, const int64_t *lengths, int64_t count,
          const uint32_t *falling, uint32_t factor, uint32_t *out)
{
  for (int64_t i = 0; i < count; i++)
    out[i] = java_more(1, data + starts[i], lengths[i], falling, factor);
}

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

EXPORT FOR_EACH_PROCESSOR void
mix(const uint64_t *values, int64_t count, uint64_t salt, uint64_t *out)
{
  for (int64_t i = 0; i < count; i++)
    out[i] = mixed(values[i] ^ salt);
}

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
EXPORT FOR_EACH_PROCESSOR void
row_hash(const uint8_t *data, const int64_t *starts, const int64_t *lengths, int64_t count,
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
EXPORT FOR_EACH_PROCESSOR void
both_hashes(const uint8_t *at, int64_t count, int64_t width, const uint32_t *falling,
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
