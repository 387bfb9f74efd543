/* One connection of a read: shared by the files of a lane.
 *
 * stream.c (bytes) <- window.c (requests) <- values.c (rows), keys.c (rows by key) <- lane.c (answers)
 */
#ifndef IGNITETF_LANE_H
#define IGNITETF_LANE_H

#include "core.h"

/* The reason why `run` returns; `_core/__init__.py` has the same names. */
enum Event {
  GOES_ON = -1,
  DONE = 0,     /* all units of the lane have ended */
  STOPPED = 1,
  UNKNOWN = 2,  /* unknown form: a = type id, b = schema id, c = flags */
  LEFT = 3,     /* there are rows for the general decoder; see `left` */
  FAILED = 4,   /* the node answered with an error; returns its body */
  LOST = 5,     /* connection lost: a = errno, 0 if the other side has closed it */
  DAMAGED = 6,  /* an answer is damaged; the text says how */
  COUNT = 7,    /* the unit has another number of rows: `a` or more */
  REPLAYED = 8, /* rows that were delivered before have other keys now */
  RESTART = 9,  /* a large row must arrive completely: continue over a new connection */
  NO_MEMORY = 10,
  RAISED = 11   /* a callback has raised */
};

/* The result for a row or a value. */
enum { LANDED = 0, IS_LEFT = 1 };

typedef struct Stash {
  struct Stash *next;
  int64_t unit, size, expected;
  uint8_t bytes[];
} Stash;

typedef struct {
  PyObject_HEAD
  Landing *landing;
  int32_t number;
  int fd;
  PyObject *receive, *send; /* for a connection that only Python can use */
  PyThreadState *state;
  int64_t limit_ns, since, progress;
  /* Bytes `begin` to `end` were received and not consumed. */
  uint8_t *buffer;
  int64_t begin, end, room;
  int from_stash;
  uint8_t *own_buffer;
  int64_t own_begin, own_end, own_room;
  /* The requests; those of units[next..] have not been sent. */
  Py_buffer units_view, frames_view, frame_at_view;
  int64_t *unit;
  int64_t units, next, oldest, first_id, open, cursors, most_cursors, ended;
  uint8_t *out;
  int64_t out_size, out_room;
  /* The window. */
  int64_t window, least_window, most_window, unanswered, asked;
  int64_t round_start, round_bytes, round_end, sent_at, waited_ns;
  double rate, delay;
  int64_t *sent; /* time of the request without an answer, by number of the unit; 0 for none */
  /* The answer that is being parsed. */
  int64_t left;    /* bytes of the answer that are not consumed */
  int64_t current; /* unit of the answer; -1 for none */
  int64_t entries, pending, mark;
  int asked_next;
  Group *group;
  int64_t group_first;
  const Form *form;
  int64_t offset[MOST_FIELDS];
  /* Keys of a request, by hash. */
  int64_t *slot, slots, slot_room, found_slot, *landed_place, landed_room;
  /* Rows for the general decoder. */
  uint8_t *left_bytes;
  int64_t left_size, left_room, *left_place, left_rows, left_places_room, left_unit;
  int64_t unplaced, absent, absent_room, *absent_row; /* for the keys of an answer */
  Stash *stash;
  int64_t stashed;
  /* The values of an event. */
  int64_t a, b, c;
  const char *text;
  int64_t topology_major, topology_minor;
  int64_t bytes, answers, calls;
} Lane;

static inline int damaged(Lane *lane, const char *text) {
  lane->text = text;
  return DAMAGED;
}

/* Received bytes that are not consumed, and the remaining bytes of the current answer. */
static inline const uint8_t *here(const Lane *lane) { return lane->buffer + lane->begin; }
static inline void consume(Lane *lane, int64_t size) {
  lane->begin += size;
  lane->left -= size;
}

/* Whether the node probably keeps a cursor for a unit after its first answer. */
static inline int has_cursor(const Lane *lane, const Unit *unit) {
  if (lane->landing->keys) return 0;
  return unit->rows < 0 || unit->rows > lane->landing->page_rows;
}

/* stream.c */
int fetch(Lane *lane, int64_t size);
int pull(Lane *lane, uint8_t *to, int64_t size);
int skip(Lane *lane, int64_t size);
int put_out(Lane *lane, const void *bytes, int64_t size);
int flush(Lane *lane);

/* Ensures that the buffer has at least `size` consecutive bytes. */
static inline int need(Lane *lane, int64_t size) {
  return lane->end - lane->begin >= size ? GOES_ON : fetch(lane, size);
}

/* The same, within the current answer. */
static inline int need_here(Lane *lane, int64_t size) {
  return size > lane->left ? damaged(lane, "an answer is shorter than what it holds")
                           : need(lane, size);
}

/* window.c */
int ask_next_page(Lane *lane, Unit *unit, int64_t number);
int has_room(const Lane *lane, int64_t bytes);
int is_near(const Lane *lane, const Unit *unit, int64_t done);
int refill(Lane *lane);
void measure(Lane *lane, int64_t number, int64_t bytes);

/* values.c */
typedef struct {
  int32_t type_id, schema_id, flags;
  int64_t size, footer; /* offset of the footer */
  int width;            /* bytes of an offset */
} Head;
enum { MORE = -1, OTHER = -2, IMPOSSIBLE = -3 }; /* see `value_end` */
int read_head(const uint8_t *object, int64_t size, Head *head);
int form_of(Lane *lane, const Head *head);
int land_value(Lane *lane, int32_t number, int64_t row, const uint8_t *value, const uint8_t *end);
int land_object(Lane *lane, int64_t row, const uint8_t *object, int64_t size);
int land_arriving(Lane *lane, int64_t row, const Head *head);

/* keys.c */
int make_slots(Lane *lane, const Unit *unit);
int64_t place_of_key(Lane *lane, const Unit *unit, const uint8_t *key, int64_t size);
int keep_absent(Lane *lane, const Unit *unit);

#endif
