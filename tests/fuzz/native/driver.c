/* Damages pages and gives them to a decoder: driver SEED FIRST COUNT CASE...
 *
 * Input N of a seed is always the same: `driver SEED N 1 CASE...` repeats the one that failed. Pages
 * end where memory ends for ASan, and the bytes before them are poisoned.
 */
#include "decoder.h"

#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE_PAGE = 32 << 10, MOST_DAMAGE = 3, ADDED = 64 };

typedef struct {
  Decoder *decoder;
  uint8_t *entries;
  int64_t *bounds; /* where entries begin, and the end of the last one */
  int64_t size, count;
} Case;

static uint64_t seed;
static long long number;

static void say_where(void) {
  fprintf(stderr, "input %lld of seed %llu\n", number, (unsigned long long)seed);
}

static void *read_bytes(FILE *file, int64_t size) {
  void *bytes = malloc((size_t)size + 1);
  if (!bytes || fread(bytes, 1, (size_t)size, file) != (size_t)size) exit(3);
  return bytes;
}

static int64_t read_number(FILE *file) {
  int64_t value;
  if (fread(&value, sizeof value, 1, file) != 1) exit(3);
  return value;
}

static Case read_case(const char *path) {
  FILE *file = fopen(path, "rb");
  Case found;
  if (!file) exit(3);
  int32_t *setup = read_bytes(file, read_number(file));
  found.decoder = decoder_open(setup);
  free(setup);
  found.count = read_number(file);
  found.bounds = read_bytes(file, 8 * (found.count + 1));
  found.size = found.bounds[found.count];
  found.entries = read_bytes(file, found.size);
  fclose(file);
  return found;
}

/* A place in the page: mostly near the beginning or the end of an entry, where its lengths are. */
static int64_t place(const Case *from, int64_t size, uint64_t *state) {
  int64_t at = below(state, size);
  int64_t bound = from->bounds[below(state, from->count + 1)];
  switch (draw(state) % 4) {
    case 0: at = bound + below(state, 32); break;
    case 1: at = bound - 48 + below(state, 144);
  }
  return at < 0 ? 0 : at >= size ? size - 1 : at;
}

static void put_number(uint8_t *at, const Case *from, int64_t size, uint64_t *state) {
  static const int32_t numbers[] = {0, 1, -1, 2, 24, 127, 255, 256, 65535, 65536, 1 << 24, INT32_MAX,
                                    INT32_MIN};
  int32_t value;
  memcpy(&value, at, 4);
  switch (draw(state) % 6) {
    case 0: value = numbers[below(state, sizeof numbers / sizeof *numbers)]; break;
    case 1: value = (int32_t)below(state, 2 * size); break;
    case 2: value = (int32_t)(from->bounds[below(state, from->count + 1)] - below(state, 64)); break;
    case 3: value = (int32_t)((uint32_t)value ^ 1u << draw(state) % 32); break;
    case 4: value = (int32_t)((uint32_t)value - (uint32_t)below(state, 2400)); break;
    default: value = (int32_t)((uint32_t)value + (uint32_t)below(state, 19) - 9u);
  }
  memcpy(at, &value, 4);
}

/* Damages a page, which has room for ADDED more bytes; returns its size then. */
static int64_t damage(const Case *from, uint8_t *page, int64_t size, uint64_t *state) {
  for (int64_t left = 1 + below(state, MOST_DAMAGE); left && size > 8; left--) {
    int64_t at = place(from, size, state), some = 1 + below(state, 9);
    switch (draw(state) % 8) {
      case 0: page[at] ^= (uint8_t)(1u << draw(state) % 8); break;
      case 1: page[at] = (uint8_t)draw(state); break;
      case 2: size = draw(state) % 4 ? size : at; break;
      case 3:
        if (some > size - at) some = size - at;
        memmove(page + at, page + at + some, (size_t)(size - at - some));
        size -= some;
        break;
      case 4:
        memmove(page + at + some, page + at, (size_t)(size - at));
        for (int64_t i = 0; i < some; i++) page[at + i] = (uint8_t)draw(state);
        size += some;
        break;
      default: put_number(page + (at > size - 4 ? size - 4 : at), from, size, state);
    }
  }
  return size;
}

int main(int argc, char **argv) {
  if (argc < 5) return 2;
  int cases = argc - 4;
  int64_t most = 0;
  Case *all = calloc((size_t)cases, sizeof *all);
  for (int i = 0; i < cases; i++) {
    all[i] = read_case(argv[4 + i]);
    if (all[i].size > most) most = all[i].size;
  }
  seed = strtoull(argv[1], NULL, 10);
  __sanitizer_set_death_callback(say_where);
  most += ADDED;
  uint8_t *memory = malloc((size_t)most), *scratch = malloc((size_t)most);
  long long first = atoll(argv[2]), end = first + atoll(argv[3]);
  for (number = first; number < end; number++) {
    uint64_t state = seed * 1000003u + (uint64_t)number;
    Case *from = all + below(&state, cases);
    if (from->size > LARGE_PAGE && draw(&state) % 2) from = all + below(&state, cases);
    memcpy(scratch, from->entries, (size_t)from->size);
    int64_t size = draw(&state) % 64 ? damage(from, scratch, from->size, &state) : from->size;
    int64_t count = from->count;
    if (draw(&state) % 16 == 0) count += below(&state, 9) - 4;
    if (draw(&state) % 256 == 0) count = below(&state, size + 1);
    if (count < 0 || count > size) count = size;
    ASAN_UNPOISON_MEMORY_REGION(memory, (size_t)most);
    uint8_t *page = memory + most - size;
    memcpy(page, scratch, (size_t)size);
    ASAN_POISON_MEMORY_REGION(memory, (size_t)(most - size));
    decoder_page(from->decoder, page, size, count, draw(&state));
  }
  ASAN_UNPOISON_MEMORY_REGION(memory, (size_t)most);
  printf("%lld inputs of seed %llu\n", end - first, (unsigned long long)seed);
  return 0;
}
