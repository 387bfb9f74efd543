/* What driver.c needs of a decoder of pages. */
#include <stdint.h>

typedef struct Decoder Decoder;

/* A decoder as cases.py has described it for this case. */
Decoder *decoder_open(const int32_t *setup);

/* Decodes `count` entries in `size` bytes, which may be damaged, in every way that there is. The
 * decoder aborts where two ways differ. `chance` chooses sizes of pieces and of memory. */
void decoder_page(Decoder *, const uint8_t *entries, int64_t size, int64_t count, uint64_t chance);

/* The next of a series of random numbers. */
static inline uint64_t draw(uint64_t *state) {
  uint64_t value = *state += 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

static inline int64_t below(uint64_t *state, int64_t limit) {
  return limit < 1 ? 0 : (int64_t)(draw(state) % (uint64_t)limit);
}
