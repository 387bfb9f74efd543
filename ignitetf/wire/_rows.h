/* What _rows.c and _receive.c share: columns that are filled from rows. */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Where the objects of one type end (Extent in datatypes.py). */
typedef struct {
  int32_t head, unit, objects, count_at, class_id;
} Extent;

/* How `build` ends. */
enum {
  DONE,   /* all rows are there */
  MORE,   /* the bytes end within a row */
  FULL,   /* the columns have no room for the next row */
  OTHER,  /* the next row has a form that was not learned */
};
/* A field as it is stored: `head` bytes, then `unit` bytes for each item, counted at `count_at`;
 * those of a run are a multiple of `step`. */
typedef struct {
  int32_t code, what, head, unit, count_at, column, step, unused;
} Field;

/* The fields of one schema of a type, in stored order, and the columns that it lacks. */
typedef struct {
  int32_t type_id, schema_id, flags, fields, lacks, unused;
  const Field *field;
  const int32_t *lacking;
} Form;

/* A column of dense values, or of runs in a heap, which start and last so many items. */
typedef struct {
  uint8_t *values;
  int64_t *starts, *lengths;
  uint8_t *valid;     /* by row; NULL where a null is a form of its own */
  int64_t size, unit; /* bytes of a dense value, or 0; of an item in the heap */
  int64_t used, room; /* bytes of the heap */
} Store;

typedef struct {
  const Field *key, *plain; /* `plain` is a value that is no binary object, or NULL */
  const Form *form;
  Store *store;
  const Extent *extents;
  int32_t forms, stores;
  int64_t rows, room;   /* in the columns */
  const int64_t *asked; /* integer keys whose rows are the `keys` rows from `first` on */
  int64_t keys, first;
} Builder;

/* A large value that is received into its place, while the bytes of the row around it are not. */
typedef struct {
  int64_t at, nbytes; /* where it begins in the row */
  int64_t row_bytes;  /* of the whole row */
  uint8_t *to;
  Field *field;
} Gap;

static inline int32_t int_at(const uint8_t *at) {
  int32_t value;
  memcpy(&value, at, 4);
  return value;
}
