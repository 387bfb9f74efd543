/* Finds the row of a request by key to which an entry of the answer belongs. */
#include "lane.h"

static uint64_t hash_of(const uint8_t *key, int64_t size) {
  uint64_t hash = (uint64_t)add_to_mark(0, key, size);
  return hash ^ hash >> 17;
}

/* Makes the hash table of the keys of a request. */
int make_slots(Lane *lane, const Unit *unit) {
  const Landing *landing = lane->landing;
  int64_t size = 16;
  while (size < 2 * unit->rows) size *= 2;
  if (size > lane->slot_room) {
    free(lane->slot);
    lane->slot = malloc((size_t)size * 8);
    lane->slot_room = lane->slot ? size : 0;
    if (!lane->slot) return NO_MEMORY;
  }
  if (unit->rows > lane->landed_room) {
    free(lane->landed_place);
    lane->landed_place = malloc((size_t)unit->rows * 8);
    lane->landed_room = lane->landed_place ? unit->rows : 0;
    if (!lane->landed_place) return NO_MEMORY;
  }
  lane->slots = size;
  memset(lane->slot, 0, (size_t)size * 8);
  for (int64_t i = 0; i < unit->rows; i++) {
    const int64_t *at = landing->key_at + unit->base + i;
    uint64_t hash = hash_of(landing->keys + at[0], at[1] - at[0]) & (uint64_t)(size - 1);
    while (lane->slot[hash]) hash = (hash + 1) & (uint64_t)(size - 1);
    lane->slot[hash] = i + 1;
  }
  return GOES_ON;
}

/* Returns the place of a key; -1 if no key with these bytes was requested, or it has arrived. */
int64_t place_of_key(Lane *lane, const Unit *unit, const uint8_t *key, int64_t size) {
  const Landing *landing = lane->landing;
  if (*key == WRAPPED && size > 9) { /* a request has the object without this wrapper */
    key += 5;
    size -= 9;
  }
  uint64_t hash = hash_of(key, size) & (uint64_t)(lane->slots - 1);
  for (; lane->slot[hash]; hash = (hash + 1) & (uint64_t)(lane->slots - 1)) {
    int64_t number = lane->slot[hash] - 1;
    if (number < 0) continue; /* has arrived */
    const int64_t *at = landing->key_at + unit->base + number;
    if (at[1] - at[0] != size || memcmp(landing->keys + at[0], key, (size_t)size)) continue;
    lane->found_slot = (int64_t)hash;
    int64_t place = unit->base + number;
    return landing->places ? landing->places[place] : place;
  }
  return -1;
}

/* Stores the numbers of requested keys that have not arrived. Returns 0 if out of memory. */
int keep_absent(Lane *lane, const Unit *unit) {
  lane->absent = 0;
  lane->left_unit = lane->current;
  for (int64_t i = 0; i < lane->slots && lane->pending - lane->unplaced < unit->rows; i++) {
    if (lane->slot[i] <= 0) continue;
    if (lane->absent == lane->absent_room) {
      int64_t room = 2 * lane->absent + 64;
      int64_t *larger = realloc(lane->absent_row, (size_t)room * 8);
      if (!larger) return 0;
      lane->absent_row = larger;
      lane->absent_room = room;
    }
    lane->absent_row[lane->absent++] = lane->slot[i] - 1;
  }
  return 1;
}
