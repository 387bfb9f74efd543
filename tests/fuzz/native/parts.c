/* The decoder of ignitetf/wire/_rows.c and _receive.c, for driver.c.
 *
 * A page is decoded as a whole, in pieces of every size as it would arrive, and as answers to small
 * requests. All three have to find the same rows. Columns have the exact size of their memory.
 */
#include "_receive.c"

#include "decoder.h"

#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>

extern int walk(const uint8_t *, int64_t size, int64_t count, const Extent *, int64_t *starts);
extern int build(Builder *, const uint8_t *, int64_t size, int64_t count, int64_t *done, int64_t *used);
extern void take_back(const Builder *);
extern int find_gap(Builder *, const uint8_t *, int64_t size, int64_t least, int64_t most, Gap *);
extern int build_around(Builder *, uint8_t *row, int64_t size, const Gap *);

static const Rows functions = {build, take_back, find_gap, build_around};
enum { CODES = 256, UNITS = 3, SMALL_PAGE = 4 << 10, EDGE = 16, GAP = 64, ARENA = 64 << 20, MOST_DENSE = 1 << 20 };

struct Decoder {
  Extent extents[CODES];
  Field key, plain;
  Builder builder;
  Store *like; /* the columns without memory */
  int is_nullable[CODES];
  int all_dense;
};

/* What was found: rows, and a number that depends on all their values. */
typedef struct {
  int64_t rows;
  uint32_t mark;
} Found;

static void *get(int64_t size) {
  void *memory = malloc((size_t)size);
  if (!memory) abort();
  return memory;
}

/* Memory with poisoned bytes around it, until `free_all`; from malloc it would take most of the time. */
static uint8_t *arena;
static int64_t arena_used;

static void *part(int64_t size) {
  if (!arena) {
    arena = get(ARENA);
    ASAN_POISON_MEMORY_REGION(arena, ARENA);
  }
  uint8_t *memory = arena + arena_used;
  arena_used += (size + 7 & ~(int64_t)7) + GAP;
  if (arena_used > ARENA) abort();
  ASAN_UNPOISON_MEMORY_REGION(memory, (size_t)size);
  return memory;
}

static void free_all(void) {
  ASAN_POISON_MEMORY_REGION(arena, (size_t)arena_used);
  arena_used = GAP;
}

static void *copy(const int32_t **at, int64_t size) {
  void *memory = get(size ? size : 1);
  memcpy(memory, *at, (size_t)size);
  *at += size / 4;
  return memory;
}

Decoder *decoder_open(const int32_t *at) {
  Decoder *made = calloc(1, sizeof *made);
  Builder *builder = &made->builder;
  memcpy(made->extents, at, sizeof made->extents);
  at += sizeof made->extents / 4;
  builder->extents = made->extents;
  memcpy(&made->key, at, sizeof made->key);
  at += sizeof made->key / 4;
  builder->key = &made->key;
  if (*at++) {
    memcpy(&made->plain, at, sizeof made->plain);
    builder->plain = &made->plain;
  }
  at += sizeof made->plain / 4;
  builder->stores = *at++;
  made->like = calloc((size_t)builder->stores, sizeof(Store));
  made->all_dense = 1;
  for (int i = 0; i < builder->stores; i++) {
    made->like[i].size = *at++;
    made->like[i].unit = *at++;
    made->is_nullable[i] = *at++;
    made->all_dense &= made->like[i].size > 0;
  }
  builder->forms = *at++;
  Form *forms = get((int64_t)sizeof *forms * (builder->forms + 1));
  for (int i = 0; i < builder->forms; i++) {
    forms[i] = (Form){at[0], at[1], at[2], at[3], at[4], 0, NULL, NULL};
    at += 5;
    forms[i].field = copy(&at, (int64_t)sizeof(Field) * forms[i].fields);
    forms[i].lacking = copy(&at, 4 * forms[i].lacks);
  }
  builder->form = forms;
  return made;
}

static void take_memory(Decoder *decoder, int64_t room, int64_t heap) {
  Builder *builder = &decoder->builder;
  builder->store = part((int64_t)sizeof(Store) * builder->stores);
  int64_t dense = 1;
  for (int i = 0; i < builder->stores; i++) dense += decoder->like[i].size;
  if (room > 1 + MOST_DENSE / dense) room = 1 + MOST_DENSE / dense;
  builder->rows = 0;
  builder->room = room;
  for (int i = 0; i < builder->stores; i++) {
    Store *store = builder->store + i;
    *store = decoder->like[i];
    store->room = store->size ? 0 : heap;
    store->values = part(store->size ? store->size * room : heap);
    store->starts = store->size ? NULL : part(8 * room);
    store->lengths = store->size ? NULL : part(8 * room);
    store->valid = decoder->is_nullable[i] ? part(room) : NULL;
  }
}

static void check(int holds, const char *law) {
  if (holds) return;
  fprintf(stderr, "broken: %s\n", law);
  abort(); /* reported by the sanitizer */
}

/* Adds the rows that are in memory to what was found, and frees the memory for others. */
static void look(Decoder *decoder, Found *found) {
  Builder *builder = &decoder->builder;
  for (int64_t row = 0; row < builder->rows; row++)
    for (int i = 0; i < builder->stores; i++) {
      Store *store = builder->store + i;
      int is_there = !store->valid || store->valid[row];
      const uint8_t *at = store->values + row * store->size;
      int64_t size = store->size;
      if (!size) {
        check(store->starts[row] >= 0 && store->lengths[row] >= 0, "a run has a place");
        at = store->values + store->starts[row] * store->unit;
        size = store->lengths[row] * store->unit;
        check(at + size <= store->values + store->used, "a run is inside its heap");
      }
      found->mark = crc32(found->mark, (const uint8_t *)&size, sizeof size);
      found->mark = found->mark * 31 + (uint32_t)is_there;
      int64_t edge = size < EDGE ? size : EDGE; /* both ends: bytes between them take long */
      found->mark = crc32(found->mark, at, edge);
      found->mark = crc32(found->mark, at + size - edge, edge);
    }
  found->rows += builder->rows;
  builder->rows = 0;
  for (int i = 0; i < builder->stores; i++) builder->store[i].used = 0;
}

static Found decode_whole(Decoder *decoder, const uint8_t *at, int64_t size, int64_t count,
                          int64_t room) {
  Found found = {0, 0};
  int64_t done, used;
  take_memory(decoder, room, size + 1);
  int end = FULL;
  while (end == FULL && count) {
    end = build(&decoder->builder, at, size, count, &done, &used);
    check(done >= 0 && done <= count && used >= 0 && used <= size, "no more than there is");
    at += used;
    size -= used;
    count -= done;
    look(decoder, &found);
  }
  free_all();
  return found;
}

static int receive_piece(Arriving *page, const uint8_t **from, uint64_t *state) {
  int in_place = page->placed >= 0 && page->placed < page->gap.nbytes;
  int64_t most = in_place ? page->gap.nbytes - page->placed : page->room - page->end;
  if (page->placed >= 0 && !in_place) {
    int64_t row = page->gap.row_bytes - page->gap.nbytes + page->gap.at - page->end;
    if (row < most) most = row;
  }
  if (most > page->missing) most = page->missing;
  check(most > 0, "there is something to receive");
  int64_t got = 1 + below(state, draw(state) % 2 ? most : most < 40 ? most : 40);
  memcpy(in_place ? page->gap.to + page->placed : page->piece + page->end, *from, (size_t)got);
  *from += got;
  page->missing -= got;
  *(in_place ? &page->placed : &page->end) += got;
  return got > 0;
}

/* As page_reader.py does it. */
static Found decode_arriving(Decoder *decoder, const uint8_t *from, int64_t size, int64_t count,
                             uint64_t *state, int64_t heap) {
  Found found = {0, 0};
  Arriving page = {.rows = &functions, .builder = &decoder->builder, .missing = size,
                   .entries = count, .placed = -1, .source = {.socket = -1}};
  page.room = size > SMALL_PAGE ? (int64_t)1 << (8 + below(state, 10)) : 1 + below(state, size + 9);
  page.piece = part(page.room);
  take_memory(decoder, 1 + below(state, count + 2), heap);
  for (;;) {
    int end = read_page(&page);
    check(page.begin >= 0 && page.begin <= page.end && page.end <= page.room, "a piece has its size");
    if (end == ROOM) {
      uint8_t *piece = memcpy(part(2 * page.room), page.piece, (size_t)page.end);
      ASAN_POISON_MEMORY_REGION(page.piece, (size_t)page.room);
      page.piece = piece;
      page.room *= 2;
    } else if (end == BYTES) {
      receive_piece(&page, &from, state);
    } else if (end == FULL && decoder->builder.rows) {
      look(decoder, &found);
    } else {
      break;
    }
  }
  look(decoder, &found);
  check(found.rows == count - page.entries, "every row is counted once");
  free_all();
  return found;
}

/* As units.py does it: several answers over one connection, in any order, some of them damaged. */
static void decode_units(Decoder *decoder, const uint8_t *entries, int64_t size, int64_t count,
                         uint64_t *state) {
  int64_t frame = LENGTH + ANSWER_HEAD + PAGE_HEAD + size + PAGE_END, total = UNITS * frame;
  uint8_t *answers = calloc((size_t)total, 1);
  for (int i = 0; i < UNITS; i++) {
    uint8_t *at = answers + i * frame;
    int32_t length = (int32_t)frame - LENGTH, number = (int32_t)count;
    int64_t request = 10 + (i + (int64_t)(*state % UNITS)) % UNITS;
    memcpy(at, &length, 4);
    memcpy(at + LENGTH, &request, 8);
    memcpy(at + LENGTH + ANSWER_HEAD + 8, &number, 4);
    memcpy(at + LENGTH + ANSWER_HEAD + PAGE_HEAD, entries, (size_t)size);
  }
  if (draw(state) % 2) answers[below(state, total)] ^= (uint8_t)(1u << draw(state) % 8);
  if (draw(state) % 4 == 0) answers[below(state, UNITS) * frame + below(state, 26)] = (uint8_t)draw(state);
  Unit units[UNITS] = {{10, 0, 0, 0, 0}, {11, 0, 0, 0, 1}, {12, 0, 0, 0, 2}};
  Units link = {.units = units, .count = UNITS, .asked = UNITS, .most = 1 << 16,
                .source = {.socket = -1}, .room = 32 + below(state, total)};
  Units *links = &link;
  Taken taken[UNITS];
  static const int32_t link_of[UNITS] = {0};
  int64_t before[UNITS + 1] = {0, count, 2 * count, 3 * count};
  if (draw(state) % 8 == 0) before[1 + below(state, UNITS)] += below(state, 7) - 3;
  if (draw(state) % 32 == 0) before[below(state, UNITS)] = (int64_t)draw(state);
  Turns turns = {.rows = &functions, .builder = &decoder->builder, .links = &links,
                 .link_of = link_of, .taken = taken, .stop = UNITS, .held_ns = INT64_MAX,
                 .before = decoder->all_dense && draw(state) % 4 ? before : NULL};
  link.block = part(link.room);
  link.spare = part(link.room);
  take_memory(decoder, 1 + below(state, 4 * count + 2), size * (1 + below(state, 4)) + 1);
  int64_t sent = 0;
  for (int end; (end = read_units(&turns)) == ROOM || end == BYTES;) {
    if (end == ROOM) { /* as UnitAnswers.enlarge */
      uint8_t *block = part(2 * link.room);
      memcpy(block, link.block, (size_t)link.end);
      for (int i = 0; i < UNITS; i++)
        if (is_inside(&link, units + i)) units[i].at += (intptr_t)block - (intptr_t)link.block;
      link.room *= 2;
      link.block = block;
      link.spare = part(link.room);
      continue;
    }
    int64_t most = link.room - link.end;
    if (most > total - sent) most = total - sent;
    if (most < 1) break;
    most = 1 + below(state, most);
    memcpy(link.block + link.end, answers + sent, (size_t)most);
    link.end += most;
    sent += most;
  }
  check(decoder->builder.rows <= decoder->builder.room, "no more rows than there is room for");
  free_all();
  free(answers);
}

void decoder_page(Decoder *decoder, const uint8_t *entries, int64_t size, int64_t count,
                  uint64_t chance) {
  int64_t *starts = get(16 * count);
  walk(entries, size, 2 * count, decoder->extents, starts);
  free(starts);
  Found whole = decode_whole(decoder, entries, size, count, 1 + below(&chance, count + 2));
  Found pieces = decode_arriving(decoder, entries, size, count, &chance, size + 1);
  check(whole.rows == pieces.rows && whole.mark == pieces.mark, "pieces have the rows of the page");
  if (draw(&chance) % 8 == 0)
    decode_arriving(decoder, entries, size, count, &chance, below(&chance, size));
  if (size <= SMALL_PAGE && decoder->like->size && draw(&chance) % 4 == 0)
    decode_units(decoder, entries, size, count, &chance);
}
