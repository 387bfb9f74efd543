/* Lane: the requests and answers of one connection.
 *
 * Requests go out in the order of the plan, as many as the window allows: about as many bytes as
 * arrive within the time that the quickest answer took, twice over. The next page of a cursor is
 * requested as soon as the head of the last one is here. Rows are landed as their bytes arrive.
 */
#include "core.h"

#include <errno.h>
#include <sys/socket.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* Python ignores SIGPIPE anyway */
#endif

enum {
  BUFFER_BYTES = 256 << 10, /* stays in the processor's cache */
  WHOLE_BYTES = 64 << 10,   /* from so many bytes of an answer on, a call waits for all of them */
  LARGE_BYTES = 32 << 10,   /* values of rows of so many bytes are received into their place */
  MOST_AT_ONCE = 8 << 20,   /* received by one call, so that its time limit measures progress */
  LEAST_PROGRESS = 64 << 10, /* fewer bytes than this within the time limit are no progress */
  LEFT_BYTES = 8 << 20,     /* rows for the general decoder are handed over from here on */
  ROWS_AHEAD = 6,           /* whose places in memory are loaded early */
  MOST_ERROR = 1 << 20
};

/* Why `run` returns; `_core/__init__.py` has the same names. */
enum Event {
  GOES_ON = -1,
  DONE = 0,     /* all units of the lane have ended */
  STOPPED = 1,
  UNKNOWN = 2,  /* a form: a = type id, b = schema id, c = flags */
  LEFT = 3,     /* rows for the general decoder; see `left` */
  FAILED = 4,   /* the node answered with an error: its body */
  LOST = 5,     /* the connection: a = errno, 0 if the other side has closed it */
  DAMAGED = 6,  /* an answer; says what is wrong */
  COUNT = 7,    /* the unit has another number of rows: a, or more */
  REPLAYED = 8, /* rows that were delivered before have other keys now */
  RESTART = 9,  /* a large row has to be here as a whole: read on over a new connection */
  NO_MEMORY = 10,
  RAISED = 11   /* a callback has raised */
};

/* What became of a row or a value. */
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
  /* Bytes that were received and not consumed: those from `begin` to `end`. */
  uint8_t *buffer;
  int64_t begin, end, room;
  int from_stash;
  uint8_t *own_buffer;
  int64_t own_begin, own_end, own_room;
  /* The requests: those of units[next..] are still to be sent. */
  Py_buffer units_view, frames_view, frame_at_view;
  int64_t *unit;
  int64_t units, next, oldest, first_id, open, cursors, most_cursors, ended;
  uint8_t *out;
  int64_t out_size, out_room;
  /* The window. */
  int64_t window, least_window, most_window, unanswered, asked;
  int64_t round_start, round_bytes, round_end, sent_at, waited_ns;
  double rate, delay;
  int64_t *sent; /* by number of the unit: when it was requested last */
  /* The answer that is being parsed. */
  int64_t left;    /* bytes of it that are not consumed */
  int64_t current; /* its unit; -1 for none */
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
  int64_t unplaced, absent, absent_room, *absent_row; /* of the keys of an answer */
  Stash *stash;
  int64_t stashed;
  /* Of an event. */
  int64_t a, b, c;
  const char *text;
  int64_t topology_major, topology_minor;
  int64_t bytes, answers, calls;
} Lane;

static int damaged(Lane *lane, const char *text) {
  lane->text = text;
  return DAMAGED;
}

/* Bytes from the connection */

static int64_t receive_by_python(Lane *lane, uint8_t *to, int64_t room) {
  int64_t got = -1;
  PyEval_RestoreThread(lane->state);
  PyObject *view = PyMemoryView_FromMemory((char *)to, room, PyBUF_WRITE);
  PyObject *found = view ? PyObject_CallFunctionObjArgs(lane->receive, view, NULL) : NULL;
  if (found) {
    got = PyLong_AsLongLong(found);
    Py_DECREF(found);
  }
  Py_XDECREF(view);
  lane->state = PyEval_SaveThread();
  return got;
}

/* Whether a signal, as Ctrl-C, has raised an exception; only in the main thread. */
static int was_interrupted(Lane *lane) {
  PyEval_RestoreThread(lane->state);
  int raised = PyErr_CheckSignals();
  lane->state = PyEval_SaveThread();
  return raised;
}

/* Receives some bytes, at most `room`, or `all` of them unless the connection ends before. */
static int receive(Lane *lane, uint8_t *to, int64_t room, int all, int64_t *got) {
  lane->calls++;
  if (room > MOST_AT_ONCE) room = MOST_AT_ONCE;
  int64_t before = now_ns(), count;
  if (lane->fd < 0) {
    count = receive_by_python(lane, to, room);
    if (count < 0) return RAISED;
  } else {
    do
      count = recv(lane->fd, to, (size_t)room, all ? MSG_WAITALL : 0);
    while (count < 0 && errno == EINTR && !lane->landing->stopped && !was_interrupted(lane));
    if (count < 0 && errno == EINTR && !lane->landing->stopped) return RAISED;
    if (all && count > 0 && count < room && was_interrupted(lane)) return RAISED;
  }
  int64_t now = now_ns();
  lane->waited_ns += now - before;
  if (count <= 0) {
    lane->a = count ? errno : 0;
    return lane->landing->stopped ? STOPPED : LOST;
  }
  lane->progress += count;
  if (lane->progress >= LEAST_PROGRESS || now - lane->since < lane->limit_ns) {
    if (lane->progress >= LEAST_PROGRESS) {
      lane->since = now;
      lane->progress = 0;
    }
  } else if (all || count < room) {
    lane->a = EAGAIN;
    return LOST;
  }
  *got = count;
  return GOES_ON;
}

/* Has at least `size` consecutive bytes in the buffer. */
static int need(Lane *lane, int64_t size) {
  if (lane->end - lane->begin >= size) return GOES_ON;
  if (lane->from_stash) return damaged(lane, "an answer is cut");
  if (lane->begin == lane->end) lane->begin = lane->end = 0;
  if (lane->begin + size > lane->room) {
    memmove(lane->buffer, lane->buffer + lane->begin, (size_t)(lane->end - lane->begin));
    lane->end -= lane->begin;
    lane->begin = 0;
  }
  if (size > lane->room) {
    uint8_t *larger = realloc(lane->buffer, (size_t)size);
    if (!larger) return NO_MEMORY;
    lane->buffer = larger;
    lane->room = size;
  }
  while (lane->end - lane->begin < size) {
    int64_t coming = lane->left - (lane->end - lane->begin), room = lane->room - lane->end, got;
    int all = coming >= WHOLE_BYTES;
    if (all && room > coming) room = coming;
    int found = receive(lane, lane->buffer + lane->end, room, all, &got);
    if (found != GOES_ON) return found;
    lane->end += got;
  }
  return GOES_ON;
}

/* The same, of the present answer. */
static int need_here(Lane *lane, int64_t size) {
  return size > lane->left ? damaged(lane, "an answer is shorter than what it holds")
                           : need(lane, size);
}

static void consume(Lane *lane, int64_t size) {
  lane->begin += size;
  lane->left -= size;
}

static const uint8_t *here(const Lane *lane) { return lane->buffer + lane->begin; }

/* Moves the next bytes of the answer to their place. */
static int pull(Lane *lane, uint8_t *to, int64_t size) {
  if (size > lane->left) return damaged(lane, "an answer is shorter than what it holds");
  int64_t have = lane->end - lane->begin;
  if (have > size) have = size;
  memcpy(to, here(lane), (size_t)have);
  consume(lane, have);
  to += have;
  size -= have;
  if (size && lane->from_stash) return damaged(lane, "an answer is cut");
  while (size) {
    int64_t got;
    int found = receive(lane, to, size, 1, &got);
    if (found != GOES_ON) return found;
    lane->left -= got;
    to += got;
    size -= got;
  }
  return GOES_ON;
}

static int skip(Lane *lane, int64_t size) {
  while (size) {
    int64_t piece = size < BUFFER_BYTES / 2 ? size : BUFFER_BYTES / 2;
    int found = need_here(lane, piece);
    if (found != GOES_ON) return found;
    consume(lane, piece);
    size -= piece;
  }
  return GOES_ON;
}

/* Requests */

static int flush(Lane *lane) {
  uint8_t *from = lane->out;
  int64_t size = lane->out_size;
  lane->out_size = 0;
  if (!size) return GOES_ON;
  if (lane->fd < 0) {
    PyEval_RestoreThread(lane->state);
    PyObject *sent = PyObject_CallFunction(lane->send, "y#", (char *)from, (Py_ssize_t)size);
    int raised = !sent;
    Py_XDECREF(sent);
    lane->state = PyEval_SaveThread();
    return raised ? RAISED : GOES_ON;
  }
  while (size) {
    ssize_t sent = send(lane->fd, from, (size_t)size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR && !lane->landing->stopped) {
      if (was_interrupted(lane)) return RAISED;
      continue;
    }
    if (sent < 0) {
      lane->a = errno;
      return lane->landing->stopped ? STOPPED : LOST;
    }
    from += sent;
    size -= sent;
  }
  return GOES_ON;
}

static int put_out(Lane *lane, const void *bytes, int64_t size) {
  if (lane->out_size + size > lane->out_room) {
    int64_t room = 2 * (lane->out_size + size);
    uint8_t *larger = realloc(lane->out, (size_t)room);
    if (!larger) return NO_MEMORY;
    lane->out = larger;
    lane->out_room = room;
  }
  memcpy(lane->out + lane->out_size, bytes, (size_t)size);
  lane->out_size += size;
  return GOES_ON;
}

static void was_asked(Lane *lane, Unit *unit, int64_t number) {
  __atomic_store_n(&unit->state, ASKED, __ATOMIC_RELEASE);
  unit->lane = lane->number;
  lane->sent[number] = now_ns();
  lane->unanswered++;
  lane->asked += unit->expected;
}

static int ask_next_page(Lane *lane, Unit *unit, int64_t number) {
  struct __attribute__((packed)) {
    int32_t length;
    int16_t op;
    int64_t id, cursor;
  } request = {18, (int16_t)lane->landing->next_op, lane->first_id + number, unit->cursor};
  was_asked(lane, unit, number);
  return put_out(lane, &request, sizeof request);
}

static int has_room(const Lane *lane, int64_t bytes) {
  return !lane->unanswered || lane->asked + bytes <= lane->window;
}

/* Whether the rows of a unit from number `done` on may be requested: they have a place soon. */
static int is_near(const Lane *lane, const Unit *unit, int64_t done) {
  const Landing *landing = lane->landing;
  if (unit->base < 0) return 1; /* its answer waits, within the window */
  int64_t first = landing->places || landing->keys ? unit->first : unit->base + done;
  return first < open_end(landing, lane->window);
}

/* Whether the node keeps a cursor for a unit after its first answer, as far as is known. */
static int has_cursor(const Lane *lane, const Unit *unit) {
  if (lane->landing->keys) return 0;
  return unit->rows < 0 || unit->rows > lane->landing->page_rows;
}

/* Sends requests while the window has room, cursors that wait for their next page first. */
static int refill(Lane *lane) {
  Landing *landing = lane->landing;
  if (lane->asked > lane->window / 4 * 3 && lane->unanswered) return flush(lane);
  while (lane->oldest < lane->next && landing->unit[lane->unit[lane->oldest]].state == ENDED)
    lane->oldest++;
  int64_t half = lane->open - lane->unanswered;
  for (int64_t i = lane->oldest; half > 0 && i < lane->next; i++) {
    Unit *unit = landing->unit + lane->unit[i];
    if (unit->state != HALF) continue;
    half--;
    if (!is_near(lane, unit, unit->done) || !has_room(lane, unit->expected)) continue;
    int found = ask_next_page(lane, unit, lane->unit[i]);
    if (found != GOES_ON) return found;
  }
  while (lane->next < lane->units && lane->cursors < lane->most_cursors) {
    int64_t number = lane->unit[lane->next];
    Unit *unit = landing->unit + number;
    if (!is_near(lane, unit, 0) || !has_room(lane, unit->expected)) break;
    const int64_t *at = (const int64_t *)lane->frame_at_view.buf;
    int found = put_out(lane, (const uint8_t *)lane->frames_view.buf + at[number],
                        at[number + 1] - at[number]);
    if (found != GOES_ON) return found;
    was_asked(lane, unit, number);
    lane->open++;
    lane->cursors += has_cursor(lane, unit);
    lane->next++;
  }
  return flush(lane);
}

/* The window follows the best rate and the quickest answer. */
static void measure(Lane *lane, int64_t number, int64_t bytes) {
  int64_t now = now_ns(), sent = lane->sent[number];
  double delay = (double)(now - sent) * 1e-9;
  if (delay < lane->delay) lane->delay = delay;
  lane->round_bytes += bytes;
  if (sent < lane->round_start) return;
  /* A round: requested after the last one ended. */
  double seconds = (double)(now - lane->round_end) * 1e-9;
  if (seconds > 1e-4) {
    double rate = (double)lane->round_bytes / seconds;
    lane->rate = rate > lane->rate ? rate : lane->rate * 0.9 + rate * 0.1;
  }
  lane->round_start = lane->round_end = now;
  lane->round_bytes = 0;
  int64_t window = lane->least_window + (int64_t)(2 * lane->rate * lane->delay);
  if (window > 2 * lane->window) window = 2 * lane->window;
  if (window > lane->most_window) window = lane->most_window;
  lane->window = window;
}

/* Values */

enum { MORE = -1, OTHER = -2, IMPOSSIBLE = -3, MOST_DEPTH = 64 };

/* Returns where the id of a class ends, with the name that follows an id of 0. */
static int64_t class_end(const uint8_t *bytes, int64_t at, int64_t size) {
  if (at + 9 > size) return at + 4 <= size && int32_at(bytes + at) ? at + 4 : MORE;
  if (int32_at(bytes + at)) return at + 4;
  int64_t length = int32_at(bytes + at + 5);
  return bytes[at + 4] != STRING || length < 0 ? IMPOSSIBLE : at + 9 + length;
}

/* Returns where a proxy ends: after the ids of its interfaces, the object behind it. */
static int64_t proxy_end(const Extent *extents, const uint8_t *bytes, int64_t at, int64_t size,
                         int depth) {
  if (at + 5 > size) return MORE;
  int64_t count = int32_at(bytes + at + 1), end = at + 5;
  if (count < 0) return IMPOSSIBLE;
  for (; count > 0; count--)
    if ((end = class_end(bytes, end, size)) < 0) return end;
  return value_end(extents, bytes, end, size, depth + 1);
}

/* Returns where the value at `at` ends. MORE: its first bytes do not tell; OTHER: it is of a type
 * that the core does not know; IMPOSSIBLE: it is damaged. */
int64_t value_end(const Extent *extents, const uint8_t *bytes, int64_t at, int64_t size, int depth) {
  if (at >= size) return MORE;
  const Extent *extent = extents + bytes[at];
  if (extent->head && !extent->count_at) return at + extent->head;
  if (depth > MOST_DEPTH) return IMPOSSIBLE;
  if (bytes[at] == WRAPPED || bytes[at] == OBJECT) {
    int64_t count_at = bytes[at] == OBJECT ? 12 : 1;
    if (at + count_at + 4 > size) return MORE;
    int64_t length = int32_at(bytes + at + count_at);
    if (length < (bytes[at] == OBJECT ? OBJECT_HEAD : 0)) return IMPOSSIBLE;
    return bytes[at] == OBJECT ? at + length : at + 5 + length + 4;
  }
  if (bytes[at] == CLASS) return class_end(bytes, at + 1, size);
  if (bytes[at] == PROXY) return proxy_end(extents, bytes, at, size, depth);
  if (!extent->head) return OTHER;
  if (extent->class_id) {
    int64_t end = class_end(bytes, at + 1, size);
    if (end < 0) return end;
    at = end - 5;
  }
  if (at + extent->count_at + 4 > size) return MORE;
  int64_t count = int32_at(bytes + at + extent->count_at), end = at + extent->head;
  if (count < 0) return extent->class_id ? OTHER : IMPOSSIBLE;
  end += count * extent->unit;
  if (!extent->objects) return end;
  for (int64_t i = 0; i < count * extent->objects; i++) {
    end = value_end(extents, bytes, end, size, depth + 1);
    if (end < 0) return end;
  }
  return end;
}

static int set_null(Lane *lane, int32_t number, int64_t row) {
  const Column *column = lane->landing->layout->column + number;
  if (!column->nullable) return IS_LEFT;
  uint8_t *dense = lane->group->dense->bytes;
  lane->group->nulls[number] = 1;
  dense[column->valid + row] = 0;
  if (column->heap < 0) {
    memset(dense + column->values + row * column->size, 0, (size_t)column->size);
  } else {
    memset(dense + column->starts + 8 * row, 0, 8);
    memset(dense + column->lengths + 8 * row, 0, 8);
  }
  return LANDED;
}

/* Returns where the bytes of a run go. */
static uint8_t *run_room(Lane *lane, const Column *column, int64_t row, int64_t nbytes) {
  int64_t start, unit = column->kind == UUID_TEXT ? 1 : column->unit;
  uint8_t *to = heap_room(lane->landing, lane->group, column->heap, nbytes, unit, &start);
  if (!to) return NULL;
  uint8_t *dense = lane->group->dense->bytes;
  int64_t first = start / unit, count = nbytes / unit;
  memcpy(dense + column->starts + 8 * row, &first, 8);
  memcpy(dense + column->lengths + 8 * row, &count, 8);
  return to;
}

static void write_uuid(uint8_t *to, const uint8_t *bits) {
  static const char digits[] = "0123456789abcdef";
  for (int half = 0; half < 2; half++)
    for (int byte = 7; byte >= 0; byte--) {
      int number = half * 8 + 7 - byte;
      if (number == 4 || number == 6 || number == 8 || number == 10) *to++ = '-';
      *to++ = (uint8_t)digits[bits[half * 8 + byte] >> 4];
      *to++ = (uint8_t)digits[bits[half * 8 + byte] & 15];
    }
}

static int land_moment(const Column *column, const uint8_t *value, uint8_t *to) {
  int64_t ms = int64_at(value), rest = int32_at(value + 8), found;
  if (rest < 0 || rest >= 1000000 || ms < column->least || ms > column->most) return IS_LEFT;
  if (__builtin_mul_overflow(ms, column->per_ms, &found) ||
      __builtin_add_overflow(found, rest / column->ns_per_unit, &found))
    return IS_LEFT;
  memcpy(to, &found, 8);
  return LANDED;
}

static inline void copy_short(uint8_t *to, const uint8_t *from, int64_t size) {
  if (size > 32) {
    memcpy(to, from, (size_t)size);
    return;
  }
  for (; size >= 8; size -= 8, to += 8, from += 8) memcpy(to, from, 8);
  while (size--) *to++ = *from++;
}

/* Lands a value that is in memory, up to `end`. */
static int land_value(Lane *lane, int32_t number, int64_t row, const uint8_t *value,
                      const uint8_t *end) {
  const Column *column = lane->landing->layout->column + number;
  int64_t size = end - value;
  if (size < 1) return IS_LEFT;
  if (*value != column->code && *value != column->other_code)
    return *value == NOTHING ? set_null(lane, number, row) : IS_LEFT;
  uint8_t *dense = lane->group->dense->bytes, *to = dense + column->values + row * column->size;
  const uint8_t *from = value + 1 + column->skip;
  if (column->nullable) dense[column->valid + row] = 1;
  switch (column->kind) {
    case DENSE:
      if (size < 1 + column->skip + column->size) return IS_LEFT;
      if (column->size == 8) {
        int64_t number = int64_at(from);
        if (number < column->least || number > column->most) return IS_LEFT;
        memcpy(to, &number, 8);
      } else if (column->size == 4) memcpy(to, from, 4);
      else memcpy(to, from, (size_t)column->size);
      return LANDED;
    case NARROW:
      if (size < 1 + 2 * column->size) return IS_LEFT;
      for (int64_t i = column->size; i < 2 * column->size; i++)
        if (from[i]) return IS_LEFT;
      memcpy(to, from, (size_t)column->size);
      return LANDED;
    case MOMENT:
      return size < 13 ? IS_LEFT : land_moment(column, from, to);
    case UUID_TEXT: {
      if (size < 17) return IS_LEFT;
      uint8_t *text = run_room(lane, column, row, 36);
      if (!text) return NO_MEMORY;
      write_uuid(text, from);
      return LANDED;
    }
  }
  if (size < 5) return IS_LEFT;
  int64_t nbytes = (int64_t)int32_at(value + 1) * column->unit;
  if (nbytes < 0 || nbytes > size - 5) return IS_LEFT;
  if (column->kind == ARRAY) {
    if (nbytes != column->size) return IS_LEFT;
    memcpy(to, value + 5, (size_t)nbytes);
    return LANDED;
  }
  if (nbytes % column->step) return IS_LEFT;
  if (!(to = run_room(lane, column, row, nbytes))) return NO_MEMORY;
  copy_short(to, value + 5, nbytes);
  return LANDED;
}

/* Rows */

typedef struct {
  int32_t type_id, schema_id, flags;
  int64_t size, footer; /* where the footer begins */
  int width;            /* bytes of an offset */
} Head;

/* Reads the head of an object of `size` bytes; IS_LEFT if it is none that the core knows. */
static int read_head(const uint8_t *object, int64_t size, Head *head) {
  if (size < OBJECT_HEAD || object[0] != OBJECT || int32_at(object + 12) != size) return IS_LEFT;
  head->flags = uint16_at(object + 2);
  head->type_id = int32_at(object + 4);
  head->schema_id = int32_at(object + 16);
  head->footer = int32_at(object + 20);
  head->size = size;
  head->width = head->flags & 8 ? 1 : head->flags & 16 ? 2 : 4;
  return head->footer < OBJECT_HEAD || head->footer > size ? IS_LEFT : LANDED;
}

static int form_of(Lane *lane, const Head *head) {
  const Form *form =
      find_form(lane->landing->layout, lane->form, head->type_id, head->schema_id, head->flags);
  if (form) {
    lane->form = form;
    return form->fields < 0 ? IS_LEFT : LANDED;
  }
  if (__atomic_load_n(&lane->landing->layout->forms, __ATOMIC_ACQUIRE) == MOST_FORMS)
    return IS_LEFT;
  lane->a = head->type_id;
  lane->b = head->schema_id;
  lane->c = head->flags;
  return UNKNOWN;
}

static int64_t offset_at(const uint8_t *at, int width) {
  return width == 1 ? *at : width == 2 ? uint16_at(at) : (int64_t)int32_at(at);
}

static int land_lacking(Lane *lane, int64_t row) {
  const Form *form = lane->form;
  for (int32_t i = 0; i < form->lacks; i++)
    if (set_null(lane, form->column[form->fields + i], row)) return IS_LEFT;
  return LANDED;
}

/* Lands an object that is in memory. */
static int land_object(Lane *lane, int64_t row, const uint8_t *object, int64_t size) {
  Head head;
  int found = read_head(object, size, &head);
  if (!found) found = form_of(lane, &head);
  if (found) return found;
  const Form *form = lane->form;
  if ((int64_t)form->fields * head.width > size - head.footer) return IS_LEFT;
  const uint8_t *footer = object + head.footer;
  for (int32_t i = 0; i < form->fields; i++) {
    int32_t number = form->column[i];
    if (number < 0) continue;
    int64_t at = offset_at(footer + (int64_t)i * head.width, head.width);
    if (at < OBJECT_HEAD || at >= head.footer) return IS_LEFT;
    found = land_value(lane, number, row, object + at, footer);
    if (found) return found;
  }
  return land_lacking(lane, row);
}

/* Lands the next value of an object that is still arriving; `size` bytes of its fields are left. */
static int land_next_value(Lane *lane, int32_t number, int64_t row, int64_t size, int64_t *used) {
  int64_t first = size < OBJECT_HEAD ? size : OBJECT_HEAD;
  int found = need_here(lane, first);
  if (found != GOES_ON) return found;
  int64_t nbytes = value_end(lane->landing->layout->extents, here(lane), 0, first, 0);
  if (nbytes < 1 || nbytes > size) return RESTART;
  *used = nbytes;
  if (number < 0) return skip(lane, nbytes);
  const Column *column = lane->landing->layout->column + number;
  int code = *here(lane), counted = column->kind == ARRAY || column->kind == RUN;
  if (!counted || (code != column->code && code != column->other_code)) {
    if (nbytes > 64) return RESTART;
    if ((found = need_here(lane, nbytes)) != GOES_ON) return found;
    found = land_value(lane, number, row, here(lane), here(lane) + nbytes);
    if (found) return found == IS_LEFT ? RESTART : found;
    consume(lane, nbytes);
    return GOES_ON;
  }
  int64_t bytes = nbytes - 5;
  if (column->kind == ARRAY ? bytes != column->size : bytes % column->step) return RESTART;
  uint8_t *dense = lane->group->dense->bytes;
  uint8_t *to = column->kind == ARRAY ? dense + column->values + row * column->size
                                      : run_room(lane, column, row, bytes);
  if (!to) return NO_MEMORY;
  if (column->nullable) dense[column->valid + row] = 1;
  consume(lane, 5);
  return pull(lane, to, bytes);
}

/* Lands an object whose bytes are still arriving, at the front of which the lane is. */
static int land_arriving(Lane *lane, int64_t row, const Head *head) {
  const Form *form = lane->form;
  consume(lane, OBJECT_HEAD);
  int64_t at = OBJECT_HEAD, used;
  for (int32_t i = 0; i < form->fields; i++) {
    lane->offset[i] = at;
    int found = land_next_value(lane, form->column[i], row, head->footer - at, &used);
    if (found != GOES_ON) return found;
    at += used;
  }
  int64_t width = head->width, rest = head->size - head->footer;
  if (at != head->footer || rest < form->fields * width) return RESTART;
  int found = need_here(lane, rest + 4);
  if (found != GOES_ON) return found;
  for (int32_t i = 0; i < form->fields; i++)
    if (offset_at(here(lane) + i * width, (int)width) != lane->offset[i]) return RESTART;
  if (int32_at(here(lane) + rest)) return RESTART;
  if (land_lacking(lane, row)) return RESTART;
  consume(lane, rest + 4);
  return GOES_ON;
}

/* Counts the rows that have landed since the last time. */
static void commit(Lane *lane, Unit *unit) {
  Landing *landing = lane->landing;
  if (!lane->pending || landing->keys) return; /* those by key are counted with their answer */
  int64_t place = unit->base + unit->done;
  if (!landing->places) count_landed(landing, place, lane->pending);
  else
    for (int64_t i = 0; i < lane->pending; i++) count_landed(landing, landing->places[place + i], 1);
  lane->group = NULL; /* the consumer may have taken it */
  unit->done += lane->pending;
  unit->mark = lane->mark;
  lane->pending = 0;
}

/* Keeps an entry of the present answer for the general decoder; a place of -1 is for it to find. */
static int leave(Lane *lane, Unit *unit, int64_t place, int64_t size, int64_t mark) {
  int found = need_here(lane, size);
  if (found != GOES_ON) return found;
  if (lane->left_size + size > lane->left_room) {
    int64_t room = 2 * (lane->left_size + size);
    uint8_t *larger = realloc(lane->left_bytes, (size_t)room);
    if (!larger) return NO_MEMORY;
    lane->left_bytes = larger;
    lane->left_room = room;
  }
  if (lane->left_rows == lane->left_places_room) {
    int64_t room = 2 * lane->left_rows + 64;
    int64_t *larger = realloc(lane->left_place, (size_t)room * 8);
    if (!larger) return NO_MEMORY;
    lane->left_place = larger;
    lane->left_places_room = room;
  }
  memcpy(lane->left_bytes + lane->left_size, here(lane), (size_t)size);
  lane->left_size += size;
  lane->left_place[lane->left_rows++] = place;
  lane->left_unit = lane->current;
  commit(lane, unit);
  if (lane->landing->keys) {
    lane->pending++; /* counted with the others at the end */
    if (place >= 0) lane->slot[lane->found_slot] = -1;
    else lane->unplaced++;
  } else {
    unit->done++;
  }
  unit->mark = lane->mark = mark;
  consume(lane, size);
  return GOES_ON;
}

static uint64_t hash_of(const uint8_t *key, int64_t size) {
  uint64_t hash = (uint64_t)add_to_mark(0, key, size);
  return hash ^ hash >> 17;
}

/* Makes the table of the keys of a request. */
static int make_slots(Lane *lane, const Unit *unit) {
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

/* Returns the place of a key; -1 if none was requested in these bytes, or it has arrived. */
static int64_t place_of_key(Lane *lane, const Unit *unit, const uint8_t *key, int64_t size) {
  const Landing *landing = lane->landing;
  if (*key == WRAPPED && size > 9) { /* a request has the object alone */
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

/* Compares an entry with one that was delivered before. */
static int replay(Lane *lane, Unit *unit, int64_t size) {
  int found = skip(lane, size);
  if (found != GOES_ON) return found;
  unit->done++;
  unit->mark = lane->mark;
  return unit->done == unit->replay && unit->mark != unit->replay_mark ? REPLAYED : GOES_ON;
}

/* Has as many bytes here as tell where the value at `at` ends, and returns that in `end`. */
static int find_end(Lane *lane, int64_t at, int64_t *end) {
  for (int64_t tried = at + 5;; tried = at + 4 * (tried - at)) {
    if (tried > lane->left) tried = lane->left;
    int found = need(lane, tried);
    if (found != GOES_ON) return found;
    int64_t have = lane->end - lane->begin;
    if (have > lane->left) have = lane->left;
    *end = value_end(lane->landing->layout->extents, here(lane), at, have, 0);
    if (*end > at) return GOES_ON;
    if (*end == OTHER) return damaged(lane, "a value of a type that cannot be measured");
    if (*end == IMPOSSIBLE) return damaged(lane, "a value has an impossible length");
    if (have == lane->left) return damaged(lane, "an answer is shorter than what it holds");
    if (tried < have) tried = have;
  }
}

/* Begins to load what the row after some others will be written to. Places of a permutation are far
 * apart, so that each column of a row would wait for memory. Only a row of the same unit: it has not
 * landed, so that the consumer cannot have its group. */
static void expect_row(const Landing *landing, const Unit *unit, int64_t number) {
  const Layout *layout = landing->layout;
  number += ROWS_AHEAD;
  if (number >= unit->base + unit->rows) return;
  int64_t place = landing->places[number], row = place % layout->rows;
  const Group *group = __atomic_load_n(landing->group + place / layout->rows, __ATOMIC_ACQUIRE);
  if (!group) return;
  const uint8_t *dense = group->dense->bytes;
  for (int32_t i = 0; i < layout->columns; i++) {
    const Column *column = layout->column + i;
    if (column->heap < 0) {
      __builtin_prefetch(dense + column->values + row * column->size, 1);
    } else {
      __builtin_prefetch(dense + column->starts + 8 * row, 1);
      __builtin_prefetch(dense + column->lengths + 8 * row, 1);
    }
    if (column->nullable) __builtin_prefetch(dense + column->valid + row, 1);
  }
}

static void has_landed(Lane *lane, int64_t place) {
  if (lane->landing->keys) {
    lane->landed_place[lane->pending - lane->left_rows] = place;
    lane->slot[lane->found_slot] = -1; /* has arrived */
  }
  lane->pending++;
}

/* Parses the next entry of the answer. */
static int land_entry(Lane *lane, Unit *unit, int64_t behind) {
  Landing *landing = lane->landing;
  Layout *layout = landing->layout;
  int64_t key, value = 0, rows = layout->rows;
  int found = find_end(lane, 0, &key);
  if (found == GOES_ON) found = find_end(lane, key, &value);
  if (found != GOES_ON) return found;
  value -= key;
  if (key + value + behind > lane->left)
    return damaged(lane, "an answer is shorter than what it holds");
  if ((found = need_here(lane, key)) != GOES_ON) return found;
  int64_t mark = add_to_mark(lane->mark, here(lane), key), place;
  if (landing->keys) {
    place = place_of_key(lane, unit, here(lane), key);
    if (place < 0) return leave(lane, unit, -1, key + value, mark);
  } else {
    int64_t number = unit->done + lane->pending;
    if (number < unit->replay) {
      lane->mark = mark;
      return replay(lane, unit, key + value);
    }
    if (unit->rows >= 0 && number >= unit->rows) {
      lane->a = number + 1;
      return COUNT;
    }
    place = unit->base + number;
    if (landing->places) {
      expect_row(landing, unit, place);
      place = landing->places[place];
    }
  }
  if (!lane->group || place < lane->group_first || place >= lane->group_first + rows) {
    if (!landing->places && !landing->keys) commit(lane, unit);
    if (!(lane->group = group_of(landing, place))) return NO_MEMORY;
    lane->group_first = place / rows * rows;
  }
  int64_t row = place - lane->group_first, head = key + 5;
  Head object;
  if (layout->columns == 1 && !land_value(lane, 0, row, here(lane), here(lane) + key)) {
    if ((found = skip(lane, key + value)) != GOES_ON) return found;
    lane->mark = mark;
    has_landed(lane, place);
    return GOES_ON;
  }
  if (value > LARGE_BYTES && !layout->plain && !lane->from_stash &&
      !__atomic_load_n(&layout->whole_rows, __ATOMIC_ACQUIRE)) {
    if ((found = need_here(lane, head + OBJECT_HEAD)) != GOES_ON) return found;
    const uint8_t *at = here(lane);
    if (at[key] == WRAPPED && value >= 5 + OBJECT_HEAD + 4) {
      /* Only its head is here, so its size is compared with that of what it is wrapped in. */
      found = read_head(at + head, value - 9, &object);
      if (!found) found = form_of(lane, &object);
      if (found == UNKNOWN) return found;
      if (!found && !land_value(lane, 0, row, at, at + key)) {
        consume(lane, head);
        found = land_arriving(lane, row, &object);
        if (found != GOES_ON) return found;
        lane->mark = mark;
        has_landed(lane, place);
        return GOES_ON;
      }
    }
  }
  if ((found = need_here(lane, key + value)) != GOES_ON) return found;
  const uint8_t *at = here(lane);
  found = land_value(lane, 0, row, at, at + key);
  if (!found && layout->plain && layout->columns > 1) {
    found = land_value(lane, 1, row, at + key, at + key + value);
  } else if (!found) {
    int wrapped = at[key] == WRAPPED && value >= 9 && !int32_at(at + key + value - 4);
    found = wrapped ? land_object(lane, row, at + head, value - 9) : IS_LEFT;
  }
  if (found == IS_LEFT) return leave(lane, unit, place, key + value, mark);
  if (found) return found;
  lane->mark = mark;
  consume(lane, key + value);
  has_landed(lane, place);
  if (landing->places && !landing->keys && lane->pending == 256) commit(lane, unit);
  return GOES_ON;
}

/* Answers */

static void drop_stash(Lane *lane) {
  while (lane->stash) {
    Stash *next = lane->stash->next;
    free(lane->stash);
    lane->stash = next;
  }
  lane->stashed = 0;
}

/* Keeps an answer whose rows have no place yet. */
static int keep(Lane *lane, Unit *unit, int64_t number) {
  Stash *stash = malloc(sizeof *stash + (size_t)lane->left);
  if (!stash) return NO_MEMORY;
  stash->unit = number;
  stash->size = lane->left;
  stash->expected = unit->expected;
  stash->next = NULL;
  int found = pull(lane, stash->bytes, lane->left);
  if (found != GOES_ON) {
    free(stash);
    return found;
  }
  Stash **at = &lane->stash;
  while (*at) at = &(*at)->next;
  *at = stash;
  lane->stashed++;
  lane->asked += stash->expected; /* counts until it has landed */
  __atomic_store_n(&unit->state, KEPT, __ATOMIC_RELEASE);
  return GOES_ON;
}

/* Reads the number of entries of the page, and requests the one that follows. */
static int begin_page(Lane *lane, int64_t number, int may_ask) {
  Landing *landing = lane->landing;
  Unit *unit = landing->unit + number;
  int found = need_here(lane, 4);
  if (found != GOES_ON) return found;
  int64_t count = int32_at(here(lane));
  consume(lane, 4);
  if (count < 0 || count > lane->left) return damaged(lane, "a page with an impossible count");
  lane->current = number;
  lane->entries = count;
  lane->pending = 0;
  lane->mark = unit->mark;
  lane->group = NULL;
  lane->asked_next = 0;
  if (landing->keys) {
    lane->mark = lane->unplaced = 0;
    return count > unit->rows ? damaged(lane, "an answer has more entries than were requested")
                              : make_slots(lane, unit);
  }
  int64_t behind = unit->done + count;
  int more = unit->rows >= 0 ? behind < unit->rows : count == landing->page_rows;
  if (more && may_ask && count && is_near(lane, unit, behind)) {
    lane->asked_next = 1;
    found = ask_next_page(lane, unit, number);
  }
  return found == GOES_ON && may_ask ? refill(lane) : found;
}

/* Reads the head of the next answer. */
static int begin_answer(Lane *lane) {
  lane->left = 4;
  int found = need(lane, 4);
  if (found != GOES_ON) return found;
  int64_t length = int32_at(here(lane));
  if (length < 10) return damaged(lane, "an answer of impossible length");
  lane->begin += 4;
  lane->left = length;
  if ((found = need_here(lane, 10)) != GOES_ON) return found;
  int64_t number = int64_at(here(lane)) - lane->first_id;
  int flags = uint16_at(here(lane) + 8);
  consume(lane, 10);
  if (flags & ~3) return damaged(lane, "an answer with unknown flags");
  if (number < 0 || number >= lane->landing->units)
    return damaged(lane, "an answer to a request that was not sent");
  Unit *unit = lane->landing->unit + number;
  if (unit->lane != lane->number || lane->unanswered < 1 ||
      (unit->state != ASKED && unit->state != ENDED))
    return damaged(lane, "an answer to a request that was not sent");
  if (flags & 2) {
    if ((found = need_here(lane, 12)) != GOES_ON) return found;
    lane->topology_major = int64_at(here(lane));
    lane->topology_minor = int32_at(here(lane) + 8);
    consume(lane, 12);
  }
  lane->unanswered--;
  lane->asked -= unit->expected;
  lane->answers++;
  lane->bytes += length;
  unit->nbytes += length;
  measure(lane, number, length);
  if (unit->state == ENDED) return skip(lane, lane->left); /* of a page behind the last one */
  if (flags & 1) {
    if (lane->left > MOST_ERROR) return damaged(lane, "an error of impossible length");
    if ((found = need_here(lane, lane->left)) != GOES_ON) return found;
    lane->a = number;
    __atomic_store_n(&unit->state, HALF, __ATOMIC_RELEASE);
    return FAILED;
  }
  if (!lane->landing->keys && !unit->cursor) {
    if ((found = need_here(lane, 8 + lane->landing->first_skip)) != GOES_ON) return found;
    unit->cursor = int64_at(here(lane));
    consume(lane, 8 + lane->landing->first_skip);
  }
  if (unit->base < 0) return keep(lane, unit, number);
  return begin_page(lane, number, 1);
}

/* Keeps which of the requested keys have not arrived. Returns 0 without memory. */
static int keep_absent(Lane *lane, const Unit *unit) {
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

/* Ends the answer whose entries have been parsed. */
static int end_answer(Lane *lane) {
  Landing *landing = lane->landing;
  Unit *unit = landing->unit + lane->current;
  int more = 0;
  if (landing->has_more) {
    int found = need_here(lane, 1);
    if (found != GOES_ON) return found;
    more = *here(lane);
    consume(lane, 1);
    if (more > 1) return damaged(lane, "a page ends with no bool");
  }
  if (lane->left) return damaged(lane, "an answer is longer than what it holds");
  int64_t landed = lane->pending;
  if (landing->keys) {
    for (int64_t i = 0; i < landed - lane->left_rows; i++)
      count_landed(landing, lane->landed_place[i], 1);
    if (!keep_absent(lane, unit)) return NO_MEMORY;
    unit->done = landed;
    unit->mark = lane->mark;
    lane->pending = 0;
  } else {
    commit(lane, unit);
  }
  lane->group = NULL;
  if (!more && !landing->keys && unit->rows >= 0 && unit->done != unit->rows) {
    lane->a = unit->done;
    return COUNT;
  }
  if (more && !lane->asked_next && unit->rows >= 0 && unit->done >= unit->rows) {
    lane->a = unit->done + 1;
    return COUNT;
  }
  lane->current = -1;
  if (!more) {
    if (lane->asked_next && unit->rows < 0) lane->asked_next = 0;
    lane->open--;
    lane->cursors -= has_cursor(lane, unit);
    lane->ended++;
    unit_ended(landing, unit);
  } else if (!lane->asked_next) {
    __atomic_store_n(&unit->state, HALF, __ATOMIC_RELEASE);
  }
  return GOES_ON;
}

static void back_to_own(Lane *lane) {
  if (!lane->from_stash) return;
  lane->from_stash = 0;
  lane->buffer = lane->own_buffer;
  lane->begin = lane->own_begin;
  lane->end = lane->own_end;
  lane->room = lane->own_room;
}

/* Begins to land an answer that was kept, if its rows have a place by now. */
static int begin_kept(Lane *lane, int *began) {
  Stash **at = &lane->stash;
  while (*at && lane->landing->unit[(*at)->unit].base < 0) at = &(*at)->next;
  *began = *at != NULL;
  if (!*at) return GOES_ON;
  Stash *stash = *at;
  *at = stash->next;
  stash->next = lane->stash;
  lane->stash = stash; /* the first one is the one that is being landed */
  lane->stashed--;
  lane->asked -= stash->expected;
  lane->own_buffer = lane->buffer;
  lane->own_begin = lane->begin;
  lane->own_end = lane->end;
  lane->own_room = lane->room;
  lane->from_stash = 1;
  lane->buffer = stash->bytes;
  lane->begin = 0;
  lane->end = lane->room = lane->left = stash->size;
  return begin_page(lane, stash->unit, 0);
}

static void end_kept(Lane *lane) {
  back_to_own(lane);
  Stash *done = lane->stash;
  lane->stash = done->next;
  free(done);
}

/* Waits until the consumer has taken a group, another lane has ended a unit, or some time. */
static void wait_for_room(Lane *lane) {
  Landing *landing = lane->landing;
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += 50000000;
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    until.tv_sec++;
  }
  pthread_mutex_lock(&landing->lock);
  if (!landing->stopped) pthread_cond_timedwait(&landing->room, &landing->lock, &until);
  pthread_mutex_unlock(&landing->lock);
  lane->since = now_ns();
  lane->progress = 0;
}

static int advance(Lane *lane) {
  for (;;) {
    if (__atomic_load_n(&lane->landing->stopped, __ATOMIC_ACQUIRE)) return STOPPED;
    int found, began = 0;
    if (lane->current >= 0) {
      Unit *unit = lane->landing->unit + lane->current;
      int64_t behind = lane->landing->has_more ? 1 : 0;
      while (lane->entries) {
        if (lane->left_size >= LEFT_BYTES && !lane->landing->keys) return LEFT;
        if ((found = land_entry(lane, unit, behind)) != GOES_ON) {
          if (!lane->landing->keys) commit(lane, unit);
          return found;
        }
        lane->entries--;
      }
      int kept = lane->from_stash;
      if ((found = end_answer(lane)) != GOES_ON) return found;
      if (kept) end_kept(lane);
      if (lane->left_rows || lane->absent) return LEFT;
      continue;
    }
    if (lane->left_rows || lane->absent) return LEFT;
    if (lane->stash && (found = begin_kept(lane, &began)) != GOES_ON) return found;
    if (began) continue;
    if ((found = refill(lane)) != GOES_ON) return found;
    if (lane->unanswered) {
      if ((found = begin_answer(lane)) != GOES_ON) return found;
      continue;
    }
    if (lane->ended == lane->units) return DONE;
    wait_for_room(lane);
  }
}

/* Python */

static int lane_init(PyObject *self, PyObject *args, PyObject *kwargs) {
  Lane *lane = (Lane *)self;
  PyObject *landing;
  double limit_s, delay_s;
  long long first_id, window, least, most, most_cursors;
  (void)kwargs;
  if (lane->landing ||
      !PyArg_ParseTuple(args, "O!iiOOy*y*y*LddLLLL", LandingType, &landing, &lane->number, &lane->fd,
                        &lane->receive, &lane->send, &lane->units_view, &lane->frames_view,
                        &lane->frame_at_view, &first_id, &limit_s, &delay_s, &window, &least, &most,
                        &most_cursors))
    return -1;
  Py_INCREF(landing);
  Py_INCREF(lane->receive);
  Py_INCREF(lane->send);
  lane->landing = (Landing *)landing;
  lane->units = lane->units_view.len / 8;
  lane->unit = malloc((size_t)(lane->units + 1) * 8);
  lane->sent = calloc((size_t)lane->landing->units, 8);
  lane->buffer = malloc(BUFFER_BYTES);
  lane->room = BUFFER_BYTES;
  if (!lane->unit || !lane->sent || !lane->buffer) {
    PyErr_NoMemory();
    return -1;
  }
  memcpy(lane->unit, lane->units_view.buf, (size_t)lane->units * 8);
  const int64_t *at = lane->frame_at_view.buf;
  int bad = lane->frame_at_view.len / 8 != lane->landing->units + 1;
  for (int64_t i = 0; i < lane->landing->units && !bad; i++)
    bad = at[i] < 0 || at[i + 1] < at[i] || at[i + 1] > lane->frames_view.len;
  for (int64_t i = 0; i < lane->units && !bad; i++)
    bad = lane->unit[i] < 0 || lane->unit[i] >= lane->landing->units;
  if (bad) {
    PyErr_SetString(PyExc_ValueError, "requests that do not fit the units");
    return -1;
  }
  lane->first_id = first_id;
  lane->limit_ns = (int64_t)(limit_s * 1e9);
  lane->delay = delay_s;
  lane->window = window;
  lane->least_window = least;
  lane->most_window = most;
  lane->most_cursors = most_cursors;
  lane->current = -1;
  lane->since = lane->round_start = lane->round_end = now_ns();
  return 0;
}

static void lane_dealloc(PyObject *self) {
  Lane *lane = (Lane *)self;
  PyTypeObject *type = Py_TYPE(self);
  if (lane->from_stash) lane->buffer = lane->own_buffer;
  drop_stash(lane);
  free(lane->buffer);
  free(lane->unit);
  free(lane->sent);
  free(lane->out);
  free(lane->slot);
  free(lane->landed_place);
  free(lane->left_bytes);
  free(lane->left_place);
  free(lane->absent_row);
  Py_buffer *views[] = {&lane->units_view, &lane->frames_view, &lane->frame_at_view};
  for (int i = 0; i < 3; i++)
    if (views[i]->obj) PyBuffer_Release(views[i]);
  if (lane->landing) {
    Py_DECREF((PyObject *)lane->landing);
    Py_DECREF(lane->receive);
    Py_DECREF(lane->send);
  }
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

/* run() -> (event, unit, a, b, c, body or text). */
static PyObject *lane_run(PyObject *self, PyObject *unused) {
  Lane *lane = (Lane *)self;
  (void)unused;
  lane->state = PyEval_SaveThread();
  lane->since = now_ns();
  lane->progress = 0;
  int event = advance(lane);
  PyEval_RestoreThread(lane->state);
  if (event == RAISED) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a callback failed");
    return NULL;
  }
  if (event == NO_MEMORY) return PyErr_NoMemory();
  if (event == RESTART) __atomic_store_n(&lane->landing->layout->whole_rows, 1, __ATOMIC_RELEASE);
  int64_t unit = lane->current;
  const char *body = "";
  int64_t size = 0;
  if (event == DAMAGED) {
    body = lane->text;
    size = (int64_t)strlen(body);
  } else if (event == FAILED) {
    unit = lane->a;
    body = (const char *)here(lane);
    size = lane->left;
  }
  PyObject *found = Py_BuildValue("iLLLLy#", event, (long long)unit, (long long)lane->a,
                                  (long long)lane->b, (long long)lane->c, body, (Py_ssize_t)size);
  if (event == FAILED) consume(lane, size);
  return found;
}

/* Whether a query was requested that the node has not begun to answer. */
static int has_new_query(const Lane *lane) {
  for (int64_t i = lane->oldest; i < lane->next; i++) {
    const Unit *unit = lane->landing->unit + lane->unit[i];
    if (unit->state == ASKED && !unit->cursor) return 1;
  }
  return 0;
}

/* Throws answers away until all queries have begun: a node that begins one for a connection which
 * is gone keeps its cursor for ever. */
static int drain(Lane *lane) {
  back_to_own(lane);
  int found = skip(lane, lane->left);
  while (found == GOES_ON && has_new_query(lane)) {
    lane->left = 4;
    if ((found = need(lane, 4)) != GOES_ON) break;
    int64_t length = int32_at(here(lane));
    if (length < 10) return damaged(lane, "an answer of impossible length");
    lane->begin += 4;
    lane->left = length;
    if ((found = need_here(lane, 10)) != GOES_ON) break;
    int64_t number = int64_at(here(lane)) - lane->first_id;
    if (number < 0 || number >= lane->landing->units)
      return damaged(lane, "an answer to a request that was not sent");
    lane->landing->unit[number].cursor = -1;
    found = skip(lane, lane->left);
  }
  return found;
}

/* drain(): before the connection of a lane that has not ended is closed. */
static PyObject *lane_drain(PyObject *self, PyObject *unused) {
  Lane *lane = (Lane *)self;
  (void)unused;
  if (lane->landing->keys) Py_RETURN_NONE;
  lane->state = PyEval_SaveThread();
  lane->since = now_ns();
  lane->progress = 0;
  int found = drain(lane);
  PyEval_RestoreThread(lane->state);
  if (found == RAISED) return NULL;
  if (found == NO_MEMORY) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

/* left() -> (entries as bytes, their places as bytes of int64, rows of their unit whose keys have not
 * arrived as bytes of int64, their unit): rows for the general decoder, and what only it can find. */
static PyObject *lane_left(PyObject *self, PyObject *unused) {
  Lane *lane = (Lane *)self;
  (void)unused;
  PyObject *found =
      Py_BuildValue("y#y#y#L", (char *)lane->left_bytes, (Py_ssize_t)lane->left_size,
                    (char *)lane->left_place, (Py_ssize_t)(8 * lane->left_rows),
                    (char *)lane->absent_row, (Py_ssize_t)(8 * lane->absent),
                    (long long)lane->left_unit);
  lane->left_size = lane->left_rows = lane->absent = 0;
  return found;
}

/* state() -> (unanswered, open cursors, window, delay, rate, bytes, waited, calls, major, minor). */
static PyObject *lane_state(PyObject *self, PyObject *unused) {
  Lane *lane = (Lane *)self;
  (void)unused;
  return Py_BuildValue("LLLddLdLLL", (long long)lane->unanswered, (long long)lane->open,
                       (long long)lane->window, lane->delay, lane->rate, (long long)lane->bytes,
                       (double)lane->waited_ns * 1e-9, (long long)lane->calls,
                       (long long)lane->topology_major, (long long)lane->topology_minor);
}

static PyMethodDef lane_methods[] = {{"run", lane_run, METH_NOARGS, NULL},
                                     {"left", lane_left, METH_NOARGS, NULL},
                                     {"drain", lane_drain, METH_NOARGS, NULL},
                                     {"state", lane_state, METH_NOARGS, NULL},
                                     {NULL, NULL, 0, NULL}};
static PyType_Slot lane_slots[] = {{Py_tp_init, lane_init},
                                   {Py_tp_dealloc, lane_dealloc},
                                   {Py_tp_methods, lane_methods},
                                   {Py_tp_new, PyType_GenericNew},
                                   {0, NULL}};
static PyType_Spec lane_spec = {"ignitetf._core._native.Lane", sizeof(Lane), 0, Py_TPFLAGS_DEFAULT,
                                lane_slots};

int add_lane(PyObject *module) {
  PyObject *type = PyType_FromSpec(&lane_spec);
  return type ? PyModule_AddObjectRef(module, "Lane", type) : -1;
}
