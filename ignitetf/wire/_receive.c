/* Receives pages, and takes their rows apart, while their bytes are in the processor's cache.
 *
 * page_reader.py, units.py (ctypes) -> this -> _rows.c
 *
 * Of a partition with a few dozen rows, everything that Python does costs more than the rows do.
 * So the loops over the pieces of a page, and over the answers to many requests, are here.
 */
#define _GNU_SOURCE
#include "_rows.h"

#include <errno.h>
#include <sys/socket.h>
#include <time.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* Python ignores SIGPIPE anyway */
#endif

/* Checksums of keys */

static uint32_t crc_table[256];

__attribute__((constructor)) static void fill_crc_table(void) {
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; bit++) value = value & 1 ? value >> 1 ^ 0xedb88320u : value >> 1;
    crc_table[i] = value;
  }
}

/* zlib's crc32. */
static uint32_t crc32(uint32_t crc, const uint8_t *data, int64_t size) {
  crc = ~crc;
  while (size--) crc = crc >> 8 ^ crc_table[(crc ^ *data++) & 255];
  return ~crc;
}

/* Receiving */

/* How `read_page` and `read_units` end, beside DONE, FULL and OTHER. */
enum {
  END = 4,      /* the units up to `stop` are done */
  ASK = 5,      /* requests are to be sent, up to `ask` */
  ENOUGH = 6,   /* some were taken, and no more have come for so long */
  BYTES = 7,    /* there is no socket to receive from */
  LARGE = 8,    /* the next answer is not a small one, or damaged */
  ROOM = 9,     /* the memory is too small for a row, or for the answers that wait */
  UNKNOWN = 10, /* an answer that no unit waits for; it is at `begin` */
  CLOSED = 11,  /* the other side has hung up */
  FAILED = 12,  /* receiving has failed: `error` */
  COUNT = 13    /* the next unit has another number of rows than was told, and others are placed */
};

/* Less than this within the time limit is no progress, as in incoming.py. */
enum { LEAST_PROGRESS = 64 << 10 };
/* Received at a time, so that it is still in the cache when its rows are taken. */
enum { MOST_RECEIVED = 256 << 10 };

typedef struct {
  int64_t socket; /* -1 for none */
  int64_t limit_ns, waited_ns, error;
  int64_t since, count; /* of the bytes that count as progress */
} Source;

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void begin_receiving(Source *source) {
  source->since = now_ns();
  source->count = 0;
}

/* Receives some bytes, up to `room`, or `all` of these, to the end of what is at `to`. */
static int receive(Source *source, uint8_t *to, int64_t *end, int64_t room, int all) {
  if (source->socket < 0) return BYTES;
  ssize_t got = recv((int)source->socket, to + *end, (size_t)room, MSG_DONTWAIT);
  int waits = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  if (waits || (all && got > 0 && got < room)) {
    int64_t before = got < 0 ? 0 : got, begin = now_ns(), now;
    do
      got = recv((int)source->socket, to + *end + before, (size_t)(room - before),
                 all ? MSG_WAITALL : 0);
    while (got < 0 && errno == EINTR);
    now = now_ns();
    source->waited_ns += now - begin;
    if (got > 0 || (got < 0 && before && (errno == EAGAIN || errno == EWOULDBLOCK)))
      got = before + (got > 0 ? got : 0);
    if (source->count >= LEAST_PROGRESS) {
      source->since = now;
      source->count = 0;
    } else if (got > 0 && got < LEAST_PROGRESS && now - source->since > source->limit_ns) {
      source->error = EAGAIN;
      return FAILED;
    }
  }
  if (got > 0) {
    *end += got;
    source->count += got;
    return DONE;
  }
  source->error = errno;
  return got ? errno == EINTR ? DONE : FAILED : CLOSED;
}

/* Functions of _rows.c, which is a library of its own. */
typedef struct {
  int (*build)(Builder *, const uint8_t *data, int64_t size, int64_t count, int64_t *done,
               int64_t *used);
  void (*take_back)(const Builder *);
  int (*find_gap)(Builder *, const uint8_t *data, int64_t size, int64_t least, int64_t most,
                  Gap *gap);
  int (*build_around)(Builder *, uint8_t *row, int64_t size, const Gap *gap);
} Rows;

/* A page whose entries arrive. */
typedef struct {
  const Rows *rows;
  Builder *builder;
  uint8_t *piece;           /* where bytes are received */
  int64_t room, begin, end; /* its bytes; those that are not yet taken */
  int64_t missing;          /* bytes of the page that are yet to be received */
  int64_t entries;          /* that are yet to be taken */
  int64_t placed;           /* bytes of the gap that are in their place; -1 without a gap */
  Gap gap;                  /* of the row at the front of the piece */
  Source source;
} Arriving;

/* Values of so many bytes are received into their place; at most so many at a time. */
enum { LARGE_VALUE = 64 << 10, MOST_PLACED = 8 << 20 };

/* Goes on with the large value of a row, then with the rest of the row. What is behind the value is
 * received with as many bytes of the next row as this one has before it. */
static int read_gap(Arriving *page) {
  Gap *gap = &page->gap;
  while (page->placed < gap->nbytes) {
    int64_t most = gap->nbytes - page->placed, before = page->placed;
    int found = receive(&page->source, gap->to, &page->placed,
                        most < MOST_PLACED ? most : MOST_PLACED, 1);
    page->missing -= page->placed - before;
    if (found != DONE) return found;
  }
  int64_t size = gap->row_bytes - gap->nbytes;
  if (size + gap->at > page->room) return ROOM;
  while (page->end < size) {
    int64_t most = size + gap->at - page->end, before = page->end;
    int found = receive(&page->source, page->piece, &page->end,
                        page->missing < most ? page->missing : most, 1);
    page->missing -= page->end - before;
    if (found != DONE) return found;
  }
  if (page->rows->build_around(page->builder, page->piece, size, gap) != DONE) return OTHER;
  page->placed = -1;
  page->begin = size;
  page->entries--;
  return DONE;
}

/* Looks for a large value in the row that begins in the piece, and begins to place it. */
static int begin_gap(Arriving *page) {
  Gap *gap = &page->gap;
  int64_t here = page->end - page->begin;
  uint8_t *row = page->piece + page->begin;
  int found = page->rows->find_gap(page->builder, row, here, LARGE_VALUE,
                                   here + page->missing, gap);
  if (found != DONE) return found;
  if (gap->row_bytes - here > page->missing) return OTHER; /* the page is cut */
  page->placed = here - gap->at;
  memcpy(gap->to, row + gap->at, (size_t)page->placed);
  memmove(page->piece, row, (size_t)gap->at);
  page->begin = 0;
  page->end = gap->at;
  return DONE;
}

/* Receives the entries of a page and takes their rows. DONE: all of them. FULL: go on with other
 * columns. OTHER: the entry at `begin` has another form, or there are too few or too many bytes;
 * with a gap, its bytes are not where the entry's others are. */
EXPORT int read_page(Arriving *page) {
  begin_receiving(&page->source);
  for (;;) {
    int64_t done, used;
    if (page->placed >= 0) {
      int found = read_gap(page);
      if (found != DONE) return found;
    }
    int found = page->rows->build(page->builder, page->piece + page->begin, page->end - page->begin,
                      page->entries, &done, &used);
    page->begin += used;
    page->entries -= done;
    if (found == DONE) return page->missing || page->begin < page->end ? OTHER : DONE;
    if (found != MORE) return found;
    if (!page->missing) return OTHER;
    if (page->missing >= LARGE_VALUE) {
      found = begin_gap(page);
      if (found == FULL) return FULL;
      if (found == DONE) continue;
    }
    page->end -= page->begin;
    memmove(page->piece, page->piece + page->begin, (size_t)page->end);
    page->begin = 0;
    if (page->end == page->room) return ROOM;
    int64_t most = page->room - page->end, before = page->end;
    found = receive(&page->source, page->piece, &page->end,
                    page->missing < most ? page->missing : most, 1);
    page->missing -= page->end - before;
    if (found != DONE) return found;
  }
}

/* Answers */

/* A request for the only page of a cursor, and its answer once that is here. */
typedef struct {
  int64_t request;
  int64_t at, size, flags; /* of the body: its address, or 0, its bytes, and the flags before it */
  int64_t turn;            /* its number among the units of all connections */
} Unit;

/* Instead of the address: the rows are in their place. */
enum { PLACED = 1 };

/* A unit whose rows were taken: these, the checksum of their keys, and bytes of the answer. */
typedef struct {
  int64_t rows, mark, size;
} Taken;

/* The requests of one connection. */
typedef struct {
  Unit *units;
  int64_t count, next;       /* units; the next to be taken */
  int64_t here;              /* answers that wait for those before them, and left no cursor open */
  /* Requests, `frame` bytes each, of the units from number `first` on, and how many units were
   * asked for. More are once no more than `few` are unanswered: so many that `pipelined` are, if
   * no more than `held` are then yet to be taken. */
  const uint8_t *frames;
  int64_t frame, first, asked, ask, few, pipelined, held;
  uint8_t *block, *spare;    /* where bytes are received, and to where what remains is moved */
  int64_t room, begin, end;  /* bytes of each; those that are not yet taken as answers */
  int64_t waiting;           /* answers among `here` that are in the block */
  int64_t most;              /* bytes of a small answer */
  Source source;
} Units;

/* The units of all connections, in the order in which their rows are taken. */
typedef struct {
  const Rows *rows;
  Builder *builder;
  Units **links;
  const int32_t *link_of;  /* of each unit */
  Taken *taken;
  int64_t next, stop, at;  /* the next unit; the one to stop at; the connection that it ended at */
  int64_t first;           /* the unit that it began with */
  int64_t since, held_ns;  /* when that was, or 0; ENOUGH rather than waiting, so long after it */
  const int64_t *before;   /* rows of all units before each of them, and of all; NULL if not known */
  int64_t placed;          /* units behind the next one whose rows are in their place */
} Turns;

enum { LENGTH = 4, ANSWER_HEAD = 10, PAGE_HEAD = 12, PAGE_END = 1 };

/* Whether an answer is no error, and the cursor has no more pages, so that the node closed it. */
static int is_only_page(const Unit *unit) {
  const uint8_t *page = (const uint8_t *)(intptr_t)unit->at;
  return !unit->flags && unit->size >= PAGE_HEAD + PAGE_END && !page[unit->size - PAGE_END];
}

/* The entries of a unit's page: that of a scan is the cursor's id (int64), their number, these, and
 * whether there are more. */
static int64_t entries_of(const Unit *unit) {
  return int_at((const uint8_t *)(intptr_t)unit->at + 8);
}

/* Adds the rows of a unit, all of them or none, behind those that are there: DONE, FULL or OTHER. */
static int add_rows(Turns *turns, const Unit *unit) {
  Builder *builder = turns->builder;
  if (!is_only_page(unit)) return OTHER;
  const uint8_t *page = (const uint8_t *)(intptr_t)unit->at;
  int64_t size = unit->size - PAGE_HEAD - PAGE_END, entries = entries_of(unit);
  int64_t first = builder->rows, done, used;
  if ((entries || size) && (entries < 1 || entries > size)) return OTHER;
  uint32_t mark = 0;
  if (entries) {
    int found = turns->rows->build(builder, page + PAGE_HEAD, size, entries, &done, &used);
    if (found != DONE || used != size) {
      builder->rows = first;
      turns->rows->take_back(builder);
      return found == FULL ? FULL : OTHER;
    }
    const Store *keys = builder->store + builder->key->column;
    mark = crc32(0, keys->values + first * keys->size, done * keys->size);
  }
  turns->taken[unit->turn] = (Taken){entries, mark, unit->size};
  return DONE;
}

/* Adds the rows of a unit that has come before its turn, where those before them leave their place,
 * if that is known and in these columns; returns whether it did. */
static int place_unit(Turns *turns, const Unit *unit) {
  if (!turns->before || unit->turn >= turns->stop || !is_only_page(unit)) return 0;
  Builder *builder = turns->builder;
  const int64_t *before = turns->before + unit->turn;
  int64_t first = builder->rows, room = builder->room, entries = before[1] - before[0];
  int64_t row = first + before[0] - turns->before[turns->next];
  if (entries != entries_of(unit) || row < first || row > room || entries > room - row) return 0;
  builder->rows = row;
  int found = add_rows(turns, unit);
  builder->rows = first;
  return found == DONE;
}

/* Takes the next unit, which is here: DONE, FULL, OTHER or COUNT. */
static int take_unit(Turns *turns, const Unit *unit) {
  if (unit->at == PLACED) {
    turns->builder->rows += turns->taken[turns->next].rows;
    turns->placed--;
    return DONE;
  }
  if (turns->placed && is_only_page(unit)) {
    const int64_t *before = turns->before + turns->next;
    if (before[1] - before[0] != entries_of(unit)) return COUNT;
  }
  return add_rows(turns, unit);
}

static Unit *unit_of(const Units *units, int64_t request) {
  int64_t low = units->next, high = units->asked;
  while (low < high) { /* ids ascend */
    int64_t middle = (low + high) / 2;
    if (units->units[middle].request < request) low = middle + 1;
    else high = middle;
  }
  Unit *unit = units->units + low;
  return low < units->asked && unit->request == request && !unit->at ? unit : NULL;
}

/* Gives the answers that are here as a whole to their units, and places the rows of those that can
 * be. DONE where there was one; MORE, and how many bytes the next one has with its length, as far as
 * that is known. */
static int find_answers(Turns *turns, Units *units, int64_t *need) {
  int found = MORE;
  *need = LENGTH;
  while (units->end - units->begin >= LENGTH) {
    const uint8_t *at = units->block + units->begin;
    int64_t length = int_at(at), request;
    uint16_t flags;
    if (length < ANSWER_HEAD || length > units->most) return found == DONE ? DONE : LARGE;
    *need = LENGTH + length;
    if (units->end - units->begin < *need) break;
    memcpy(&request, at + LENGTH, 8);
    memcpy(&flags, at + LENGTH + 8, 2);
    Unit *unit = unit_of(units, request);
    if (!unit) return found == DONE ? DONE : UNKNOWN;
    unit->at = (intptr_t)(at + LENGTH + ANSWER_HEAD);
    unit->size = length - ANSWER_HEAD;
    unit->flags = flags;
    units->here += is_only_page(unit);
    if (place_unit(turns, unit)) {
      unit->at = PLACED;
      turns->placed++;
    } else {
      units->waiting++;
    }
    units->begin += *need;
    *need = LENGTH;
    found = DONE;
  }
  return found;
}

/* Whether an answer is in the block, and not in memory that was given. */
static int is_inside(const Units *units, const Unit *unit) {
  const uint8_t *at = (const uint8_t *)(intptr_t)unit->at;
  return at && at >= units->block && at < units->block + units->room;
}

/* Moves what remains in the block, the answers that wait and the bytes behind them, to the spare
 * one, which becomes the block. */
static int move_on(Units *units, int64_t need) {
  int64_t total = 0;
  for (int64_t i = units->next; i < units->asked; i++)
    if (is_inside(units, units->units + i)) total += units->units[i].size + ANSWER_HEAD;
  if (total + need > units->room) return ROOM;
  uint8_t *to = units->spare;
  for (int64_t i = units->next; i < units->asked; i++) {
    Unit *unit = units->units + i;
    if (!is_inside(units, unit)) continue;
    const uint8_t *at = (const uint8_t *)(intptr_t)unit->at;
    memcpy(to, at - ANSWER_HEAD, (size_t)(unit->size + ANSWER_HEAD));
    unit->at = (intptr_t)(to + ANSWER_HEAD);
    to += unit->size + ANSWER_HEAD;
  }
  int64_t rest = units->end - units->begin;
  memcpy(to, units->block + units->begin, (size_t)rest);
  units->spare = units->block;
  units->block = (uint8_t *)(intptr_t)(to - total);
  units->begin = total;
  units->end = total + rest;
  return DONE;
}

/* Moves the bytes that are no whole answer to the front, if no others are in the block: what is
 * received next stays in the processor's cache. */
static void move_to_front(Units *units) {
  if (units->waiting || !units->begin) return;
  int64_t rest = units->end - units->begin;
  memmove(units->block, units->block + units->begin, (size_t)rest);
  units->begin = 0;
  units->end = rest;
}

/* Sends further requests if few are unanswered, several by one call. Answers that wait for a late
 * one do not count, so that the node has work. */
static int ask(Units *units) {
  int64_t unanswered = units->asked - units->next - units->here;
  int64_t room = units->held - (units->asked - units->next);
  if (unanswered > units->few || units->asked == units->count) return DONE;
  int64_t more = units->pipelined - unanswered;
  if (room < (more + 1) / 2) return DONE;
  if (more > room) more = room;
  if (more > units->count - units->asked) more = units->count - units->asked;
  units->ask = units->asked + more;
  if (units->source.socket < 0) return ASK;
  const uint8_t *from = units->frames + (units->asked - units->first) * units->frame;
  for (int64_t left = more * units->frame; left;) {
    ssize_t sent = send((int)units->source.socket, from, (size_t)left, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      units->source.error = errno;
      return FAILED;
    }
    from += sent;
    left -= sent;
  }
  units->asked = units->ask;
  return DONE;
}

/* Receives at least a byte, of which `need` are needed from `begin` on. */
static int receive_answers(Units *units, int64_t need) {
  move_to_front(units);
  if (units->begin + need > units->room || units->end == units->room) {
    int found = move_on(units, need);
    if (found != DONE) return found;
  }
  int64_t room = units->room - units->end;
  if (room > MOST_RECEIVED && need < MOST_RECEIVED) room = MOST_RECEIVED;
  return receive(&units->source, units->block, &units->end, room, 0);
}

/* Asks for units, and receives answers, in any order, until that to the next unit is here. */
static int await_next(Turns *turns, Units *units) {
  int64_t need;
  begin_receiving(&units->source);
  while (!units->units[units->next].at) {
    int found = find_answers(turns, units, &need);
    if (found != DONE && found != MORE) return found;
    int sent = ask(units); /* before their rows are taken: the node has work meanwhile */
    if (sent != DONE) return sent;
    if (found == DONE) continue;
    found = receive_answers(units, need);
    if (found != DONE) return found;
  }
  return DONE;
}

/* Takes the rows of units, in order, until one of the ends above, which is one of connection `at`.
 * FULL: the next unit has no room in the columns. OTHER: it is to be read by itself. */
EXPORT int read_units(Turns *turns) {
  if (!turns->since) turns->since = now_ns();
  while (turns->next < turns->stop) {
    turns->at = turns->link_of[turns->next];
    Units *units = turns->links[turns->at];
    Unit *unit = units->units + units->next;
    int waits = !unit->at && turns->next > turns->first;
    if (waits && now_ns() - turns->since >= turns->held_ns) return ENOUGH;
    int found = unit->at ? DONE : await_next(turns, units);
    if (found == DONE) found = take_unit(turns, unit);
    if (found != DONE) return found;
    units->waiting -= is_inside(units, unit);
    units->here--;
    units->next++;
    turns->next++;
  }
  return END;
}
