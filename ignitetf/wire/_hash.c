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

/* `falling` are the WIDTH powers 31^(WIDTH-1) to 31^0, `factor` is 31^WIDTH. */
EXPORT FOR_EACH_PROCESSOR void
java_hash(const int8_t *data, const int64_t *starts, const int64_t *lengths, int64_t count,
          const uint32_t *falling, uint32_t factor, uint32_t *out)
{
  for (int64_t i = 0; i < count; i++) {
    const int8_t *at = data + starts[i], *end = at + lengths[i];
    int64_t odd = lengths[i] % WIDTH;
    uint32_t hash = falling[WIDTH - 1 - odd];
    hash += sum(at, falling + WIDTH - odd, odd);
    for (at += odd; at < end; at += WIDTH)
      hash = hash * factor + sum(at, falling, WIDTH);
    out[i] = hash;
  }
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

/* Of each run the mixed sum of its length and its little-endian words, the last one filled up with
 * zeros, these with the weights 1, r, r^2, ...: `rising` are the first WORDS of them, `factor` is
 * the next. */
EXPORT FOR_EACH_PROCESSOR void
row_hash(const uint8_t *data, const int64_t *starts, const int64_t *lengths, int64_t count,
          const uint64_t *rising, uint64_t factor, uint64_t *out)
{
  for (int64_t i = 0; i < count; i++) {
    const uint8_t *at = data + starts[i];
    int64_t words = lengths[i] / 8, odd = lengths[i] % 8;
    uint64_t total = 0, scale = 1;
    for (; words >= WORDS; words -= WORDS, at += 8 * WORDS, scale *= factor)
      total += scale * word_sum((const word *)at, rising, WORDS);
    total += scale * word_sum((const word *)at, rising, words);
    total += scale * rising[words] * rest(at + 8 * words, odd);
    out[i] = mixed(total + (uint64_t)lengths[i]);
  }
}
