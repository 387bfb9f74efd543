/* Types and functions that the parts of the core share.
 *
 * layout (how rows become columns) -> landing (units, groups of rows) <- lane (a connection)
 *
 * A lane parses answers as they arrive and writes each row to its place. It never reads or writes
 * outside the memory that holds the answer. Before any access, every length is compared with the
 * remaining bytes of its object, and the size of every object with the remaining bytes of its answer.
 */
#ifndef IGNITETF_CORE_H
#define IGNITETF_CORE_H

#define _GNU_SOURCE
#include "abi3.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Type codes of the protocol that the core checks. */
enum { STRING = 9, WRAPPED = 27, CLASS = 32, PROXY = 35, NOTHING = 101, OBJECT = 103 };

enum { OBJECT_HEAD = 24, MOST_FIELDS = 1024, MOST_FORMS = 64, MOST_COLUMNS = 1024 };

/* How the values of a column land. */
enum Kind {
  DENSE = 1,     /* `size` bytes, `skip` bytes after the type code */
  NARROW = 2,    /* like DENSE, but stored with twice the bytes; the upper half is zero */
  ARRAY = 3,     /* `size` bytes after a count of items */
  RUN = 4,       /* any number of items, copied to a heap */
  MOMENT = 5,    /* a timestamp, converted to int64 in a unit */
  UUID_TEXT = 6  /* a UUID, written to a heap as 36 characters */
};

typedef struct {
  int64_t kind, size, skip, unit, step, code, other_code, nullable, per_ms, ns_per_unit;
  int64_t least, most;                    /* numbers outside are left to the general decoder */
  int64_t values, starts, lengths, valid; /* offsets in the dense memory of a group */
  int64_t heap;                           /* number of its heap; -1 for none */
} Column;

/* The fields of the rows of one schema. */
typedef struct {
  int32_t type_id, schema_id, flags;
  int32_t fields;  /* -1: rows of this form are left to the general decoder */
  int32_t lacks;   /* number of columns without a field in this form; they are null */
  int16_t *column; /* column of each field, or -1; then the columns without a field */
} Form;

/* Memory that Python accesses as a buffer; it is reused when no view of it is left. */
typedef struct Block {
  struct Block *next;
  int64_t size;
  uint8_t *bytes;
} Block;

typedef struct {
  Block *idle;
  int64_t idle_bytes, most_idle;
} Pool;

/* The length of a value: `head` bytes, then `unit` bytes or some objects for each counted item. */
typedef struct {
  int32_t head, unit, objects, count_at, class_id;
} Extent;

typedef struct {
  PyObject_HEAD
  int32_t columns, heaps;
  Column *column; /* the key first */
  int64_t rows, dense_bytes;
  Extent extents[256]; /* by type code; unknown if the head is 0 */
  int plain;       /* values are not binary objects: the value itself is column 1 */
  int whole_rows;  /* rows are landed only when they have arrived completely */
  Form *form[MOST_FORMS];
  int32_t forms;
  int64_t *heap_bytes; /* most bytes that each heap of a group has used so far */
  Pool pool;
} Layout;

/* The progress of a unit. */
enum UnitState {
  QUEUED = 0,
  ASKED = 1,
  HALF = 2,  /* its next page has to be requested */
  ENDED = 3,
  KEPT = 4   /* an answer waits until its rows have places */
};

/* A request of a plan: a partition, or the entries of some keys. Python has an array of these. */
typedef struct {
  int64_t base;     /* place of its first row, before applying `places`; -1 while unknown */
  int64_t rows;     /* number of its rows; -1 while unknown */
  int64_t done;     /* rows that landed, or were left to the general decoder */
  int64_t first;    /* the least place of its rows; decides when it may be requested */
  int64_t expected; /* approximate bytes of its next answer */
  int64_t nbytes;   /* bytes of the answers so far */
  int64_t mark;     /* mark of the keys of its rows so far, in order */
  int64_t cursor;
  int64_t replay;   /* rows that another connection has delivered before; they are only compared */
  int64_t replay_mark;
  int32_t state, lane;
} Unit;

/* A part of a heap of a group. */
typedef struct Heap {
  struct Heap *next;
  Block *block;
  int64_t begin, used; /* its offset among the bytes of all parts; bytes in use */
} Heap;

typedef struct {
  Block *dense;
  Heap **heap;      /* for each heap, its parts, the newest first */
  int64_t landed;
  uint8_t *nulls;   /* for each column, whether a null has landed */
  pthread_mutex_t lock;
} Group;

typedef struct {
  PyObject_HEAD
  Layout *layout;
  int64_t units, known;  /* number of units; the first `known` of them have a known base */
  Unit *unit;
  int64_t total;         /* places; -1 while unknown */
  int64_t most_groups;
  Group **group;
  int64_t head;          /* the next group that the consumer takes */
  int64_t made;          /* no group from this number on was made */
  int64_t ahead;         /* least number of groups that may be filled before they are taken */
  int64_t group_bytes;   /* approximate bytes of a group */
  const int64_t *places; /* a permutation of the places; NULL for none */
  const uint8_t *keys;   /* key objects, one after the other; NULL for scans */
  const int64_t *key_at; /* start of each key, and the end of the last one */
  Py_buffer units_view, places_view, keys_view, key_at_view;
  int has_places, has_keys;
  int page_rows, has_more; /* entries in a page; whether an answer ends with `more` */
  int first_skip;          /* bytes between the cursor's id and the page of a first answer */
  int next_op;
  int stopped;
  pthread_mutex_t lock;
  pthread_cond_t ready, room;
} Landing;

/* block.c */
int begin_shared(void);
void hold_shared(void);
void release_shared(void);
void pool_begin(Pool *pool, int64_t most_idle);
void pool_end(Pool *pool);
Block *block_take(Pool *pool, int64_t size);
void block_give(Pool *pool, Block *block);

/* layout.c */
extern PyTypeObject *LayoutType;
int add_layout(PyObject *module);
const Form *find_form(Layout *layout, const Form *last, int32_t type_id, int32_t schema_id,
                      int32_t flags);

/* landing.c */
extern PyTypeObject *LandingType;
int add_landing(PyObject *module);
Group *group_of(Landing *landing, int64_t place);
uint8_t *heap_room(Landing *landing, Group *group, int64_t heap, int64_t nbytes, int64_t align,
                   int64_t *start);
void count_landed(Landing *landing, int64_t place, int64_t rows);
void unit_ended(Landing *landing, Unit *unit);
int64_t open_end(const Landing *landing, int64_t window);

/* lane.c */
int add_lane(PyObject *module);

/* values.c */
int64_t value_end(const Extent *extents, const uint8_t *bytes, int64_t at, int64_t size, int depth);

/* Read numbers from the bytes: little endian, at any address. */
static inline int32_t int32_at(const uint8_t *at) {
  int32_t value;
  memcpy(&value, at, 4);
  return value;
}
static inline int64_t int64_at(const uint8_t *at) {
  int64_t value;
  memcpy(&value, at, 8);
  return value;
}
static inline uint16_t uint16_at(const uint8_t *at) {
  uint16_t value;
  memcpy(&value, at, 2);
  return value;
}
static inline int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Returns the mark of some keys and one more key. It depends only on the keys and their order. */
static inline int64_t add_to_mark(int64_t mark, const uint8_t *key, int64_t size) {
  uint64_t hash = (uint64_t)mark ^ (uint64_t)size;
  for (; size >= 8; size -= 8, key += 8)
    hash = (hash ^ (uint64_t)int64_at(key)) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
  uint64_t rest = 0;
  memcpy(&rest, key, (size_t)size);
  hash = (hash ^ rest) * 0x9E3779B97F4A7C15ull;
  return (int64_t)(hash ^ hash >> 32);
}

#endif
