/* The node of the fuzz tests: makes damaged answers, and hands them to a lane in place of its socket.
 *
 * It is compiled with the core and the sanitizers, so `recv` and `send` of the core are these. The
 * memory of a lane behind the received bytes is poisoned: ASan reports a read of bytes that have not
 * arrived, though they are inside the lane's buffer.
 */
#include "core.h"

#include <sanitizer/asan_interface.h>
#include <sys/socket.h>

#define PUBLIC __attribute__((visibility("default")))

enum { MOST_PIECE = 60, MOST_MORE = 4096 };

static const int32_t NUMBERS[] = {0, 1, -1, 2, 24, 127, 128, 255, 256, 65535, 1 << 24, INT32_MAX, INT32_MIN};
static const uint8_t CODES[] = {1, 4, 7, 9, 12, 18, 22, 23, 24, 25, 27, 28, 30, 32, 33, 35, 101, 102, 103};
enum { MANY_NUMBERS = sizeof NUMBERS / sizeof *NUMBERS };

static uint64_t state;
static uint8_t *bytes;
static int64_t room, size, at, piece;
static uint8_t *expected, *behind; /* from there to there the memory of the lane is poisoned */

/* The next of a series of random numbers. */
static uint64_t draw(void) {
  uint64_t value = state += 0x9e3779b97f4a7c15u;
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

static int64_t below(int64_t limit) { return limit < 1 ? 0 : (int64_t)(draw() % (uint64_t)limit); }

static void make_room(int64_t more) {
  if (size + more <= room) return;
  room = 2 * (size + more);
  bytes = realloc(bytes, (size_t)room);
  if (!bytes) abort();
}

static void append(const void *from, int64_t count) {
  make_room(count);
  memcpy(bytes + size, from, (size_t)count);
  size += count;
}

/* Removes the bytes `from` to `to`. */
static void cut(int64_t from, int64_t to) {
  if (to > size) to = size;
  memmove(bytes + from, bytes + to, (size_t)(size - to));
  size -= to - from;
}

/* Makes room for `count` bytes at an offset. */
static uint8_t *open_gap(int64_t from, int64_t count) {
  make_room(count);
  memmove(bytes + from + count, bytes + from, (size_t)(size - from));
  size += count;
  return bytes + from;
}

static void put(int64_t to, uint64_t value, int64_t width) {
  if (to + width <= size) memcpy(bytes + to, &value, (size_t)width);
}

/* A number that a length, a count or an offset at an offset of the page could become. */
static int64_t number_near(int64_t here, int64_t first) {
  switch (below(4)) {
    case 0: return NUMBERS[below(MANY_NUMBERS)];
    case 1: return size - here - below(12);  /* up to the end of the page, or less, or more */
    case 2: return here - first + below(9) - 4;
    default: return (int64_t)draw();
  }
}

/* Damages the bytes from `first` on; mostly at the `spots`, which count from there. */
static void damage(int64_t first, const int32_t *spots, int64_t count) {
  int64_t here = first + below(size - first + 1);
  if (count && draw() % 8 < 6) here = first + spots[below(count)];
  if (here > size) here = size;
  int64_t long_piece = 1 + below(MOST_PIECE), few = 1 + below(9);
  switch (below(13)) {
    case 0:
      cut(here, size);
      break;
    case 1:
      if (here < size) bytes[here] ^= (uint8_t)(1 << below(8));
      break;
    case 2:
      put(here, draw(), 1);
      break;
    case 3:
      put(here, CODES[below(sizeof CODES)], 1);
      break;
    case 4:
    case 5:
      put(here, (uint64_t)number_near(here, first), 4);
      break;
    case 6:
      put(here, (uint64_t)number_near(here, first), 2);
      break;
    case 7:
      put(here, draw(), 8);
      break;
    case 8:
    case 9: /* a little more or less */
      if (here + 4 <= size) put(here, (uint64_t)(int32_at(bytes + here) + below(19) - 9), 4);
      break;
    case 10:
      cut(here, here + few);
      break;
    case 11: {
      uint8_t *gap = open_gap(here, few);
      while (few--) *gap++ = (uint8_t)draw();
      break;
    }
    default: { /* a piece twice */
      uint8_t copy[MOST_PIECE];
      if (long_piece > size - here) long_piece = size - here;
      memcpy(copy, bytes + here, (size_t)long_piece);
      memcpy(open_gap(first + below(size - first + 1), long_piece), copy, (size_t)long_piece);
    }
  }
}

/* Begins what the node sends; at most `most` bytes are received at a time. */
PUBLIC void feed_begin(uint64_t seed, int64_t most) {
  state = seed;
  piece = most;
  size = at = 0;
  expected = NULL;
}

/* Appends an answer: its length, the head, a page, and an end. Returns the page's number of entries.
 * The page is damaged `times` times; `spots` are offsets in it where damage does most. */
PUBLIC int64_t feed_answer(const uint8_t *head, int64_t head_size, const uint8_t *page,
                           int64_t page_size, const int32_t *spots, int64_t spot_count, int64_t times) {
  int64_t begin = size, length = 0;
  append(&length, 4);
  append(head, head_size);
  int64_t first = size;
  append(page, page_size);
  while (times--) damage(first, spots, spot_count);
  length = size - begin - 4;
  memcpy(bytes + begin, &length, 4);
  return size - first < 4 ? -1 : int32_at(bytes + first);
}

/* Damages everything that is sent, mostly its first head. */
PUBLIC void feed_damage(const int32_t *spots, int64_t spot_count) { damage(0, spots, spot_count); }

/* The bytes that are sent, and their number. */
PUBLIC const uint8_t *feed_bytes(void) { return bytes; }
PUBLIC int64_t feed_size(void) { return size; }

/* Lets rows land while they arrive, though one of them could not. */
PUBLIC void feed_arriving(PyObject *layout) { ((Layout *)layout)->whole_rows = 0; }

/* The buffer of a lane: ASan takes long for one of this size, so it is used again, all of it poisoned. */
enum { BUFFER = 256 << 10 };
static void *buffer;
static int is_used;

void *__real_malloc(size_t);
void *__real_realloc(void *, size_t);
void __real_free(void *);

void *__wrap_malloc(size_t count) {
  if (count != BUFFER || is_used) return __real_malloc(count);
  if (!buffer && !(buffer = __real_malloc(BUFFER))) return NULL;
  ASAN_POISON_MEMORY_REGION(buffer, BUFFER);
  is_used = 1;
  return buffer;
}

void *__wrap_realloc(void *memory, size_t count) {
  if (memory && memory == buffer) is_used = 0, buffer = NULL;
  return __real_realloc(memory, count);
}

void __wrap_free(void *memory) {
  if (!memory || memory != buffer) {
    __real_free(memory);
    return;
  }
  if (!is_used) abort();
  ASAN_POISON_MEMORY_REGION(buffer, BUFFER);
  is_used = 0;
}

ssize_t recv(int fd, void *to, size_t most, int flags) {
  int64_t count = size - at;
  (void)fd;
  if (count > (int64_t)most) count = (int64_t)most;
  if (!(flags & MSG_WAITALL)) {
    if (count > piece) count = piece;
    uint8_t *end = (uint8_t *)to + most;
    if (to != expected || end != behind) ASAN_POISON_MEMORY_REGION(to, most);
    expected = (uint8_t *)to + count;
    behind = end;
  }
  ASAN_UNPOISON_MEMORY_REGION(to, count);
  memcpy(to, bytes + at, (size_t)count);
  at += count;
  return count;
}

/* The same for a connection that only Python can use. */
PUBLIC int64_t feed_take(void *to, int64_t most) { return recv(0, to, (size_t)most, 0); }

ssize_t send(int fd, const void *from, size_t count, int flags) {
  const uint8_t *byte = from;
  uint8_t sum = 0;
  (void)fd, (void)flags;
  for (size_t i = 0; i < count; i++) sum ^= byte[i]; /* all of them are the lane's */
  *(volatile uint8_t *)&sum = sum;
  return (ssize_t)count;
}
