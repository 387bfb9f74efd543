/* The objects of a page: where each stands, and rows of them as columns, in one pass.
 *
 * walk.py, builder.py (ctypes), _receive.c -> this
 *
 * `walk` takes the same steps as `_skip` and `elements_at` in objects.py, which say what is wrong
 * with a page that this gives up on. `build` takes rows of a form that builder.py has learned, and
 * stops at the first that differs in anything but its values: decoder.py looks at that one.
 */
#include "_rows.h"

#include <stddef.h>

/* Type codes (TypeCode in codes.py) of objects whose end no table tells. */
enum { STRING = 9, WRAPPED = 27, CLASS = 32, PROXY = 35, NOTHING = 101, OBJECT = 103 };
enum { HEADER_BYTES = 24, CLASS_ID_END = 5, MAX_DEPTH = 64, CUT = -1 };

typedef struct {
  const uint8_t *data;
  int64_t size;
  const Extent *extents; /* by type code; all zeros where there is none */
} Page;

/* The int32 at a position, or CUT where it is negative or beyond the page. */
static int64_t length_at(const Page *page, int64_t at) {
  int32_t value;
  if (at > page->size - 4) return CUT;
  memcpy(&value, page->data + at, 4);
  return value < 0 ? CUT : value;
}

static int64_t inside(const Page *page, int64_t end) { return end > page->size ? CUT : end; }

/* Where `head + length * size` bytes from `at` on end; the length stands at `length_place`. */
static int64_t after(const Page *page, int64_t at, int64_t length_place, int64_t head, int64_t size) {
  int64_t length = length_at(page, length_place);
  return length == CUT ? CUT : inside(page, at + head + length * size);
}

static int64_t skip(const Page *page, int64_t at, int depth);

/* The end of the id of a class, and of the name of one that is not registered. */
static int64_t skip_class(const Page *page, int64_t at) {
  int32_t number;
  if (at > page->size - 4) return CUT;
  memcpy(&number, page->data + at, 4);
  if (number) return at + 4;
  if (at + 4 >= page->size || page->data[at + 4] != STRING) return CUT;
  return after(page, at + 4, at + 5, 5, 1);
}

/* The end of an array of objects, a collection or a map. */
static int64_t skip_elements(const Page *page, int64_t at, const Extent *extent, int depth) {
  if (extent->class_id) {
    if ((at = skip_class(page, at + 1)) == CUT) return CUT;
    at -= CLASS_ID_END;
  }
  int64_t count_place = at + extent->count_at, first = at + extent->head;
  int64_t count = length_at(page, count_place);
  if (count == CUT || count > page->size - count_place) return CUT;
  for (count *= extent->objects; count > 0; count--)
    if ((first = skip(page, first, depth + 1)) == CUT) return CUT;
  return inside(page, first);
}

/* The end of a proxy: ids of its interfaces, then the object behind it. */
static int64_t skip_proxy(const Page *page, int64_t at, int depth) {
  int64_t count = length_at(page, at + 1), first = at + 5;
  if (count == CUT || count > page->size - (at + 1)) return CUT;
  for (; count > 0; count--)
    if ((first = skip_class(page, first)) == CUT) return CUT;
  return skip(page, first, depth + 1);
}

/* Where the object at `at` ends, or CUT. */
static int64_t skip(const Page *page, int64_t at, int depth) {
  if (at >= page->size) return CUT;
  uint8_t code = page->data[at];
  const Extent *extent = &page->extents[code];
  if (extent->head && !extent->count_at) return inside(page, at + extent->head);
  if (depth > MAX_DEPTH) return CUT;
  if (extent->unit) return after(page, at, at + extent->count_at, extent->head, extent->unit);
  if (extent->objects) return skip_elements(page, at, extent, depth);
  if (code == OBJECT) {
    int64_t length = length_at(page, at + 12);
    return length < HEADER_BYTES ? CUT : inside(page, at + length);
  }
  if (code == CLASS) return skip_class(page, at + 1);
  if (code == PROXY) return skip_proxy(page, at, depth);
  return CUT;
}

/* Positions of `count` objects that fill the page; 0, or another number where they do not. */
EXPORT int walk(const uint8_t *data, int64_t size, int64_t count, const Extent *extents,
                int64_t *starts) {
  Page page = {data, size, extents};
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    starts[i] = at;
    if ((at = skip(&page, at, 0)) == CUT) return 1;
  }
  return at != size;
}

/* Rows to columns */

/* What becomes of the value of a field. A heap has the values of a column one after the other. */
enum {
  SKIP,   /* nothing */
  DENSE,  /* its bytes fill a place of `size` bytes */
  NARROW, /* the lower half of an integer whose upper half is zero does */
  RUN,    /* its items are added to the heap */
  WHOLE   /* the object is, with its type code: for columns.py */
};
/* More fields than this are left to decoder.py. */
enum { MAX_FIELDS = 256 };

static int add_null(Store *store, int64_t row) {
  if (!store->valid) return OTHER;
  store->valid[row] = 0;
  if (store->size) {
    memset(store->values + row * store->size, 0, (size_t)store->size);
  } else {
    store->starts[row] = store->used / store->unit;
    store->lengths[row] = 0;
  }
  return DONE;
}

static inline void add_dense(Store *store, int64_t row, const uint8_t *from) {
  uint8_t *to = store->values + row * store->size;
  switch (store->size) {
    case 1: *to = *from; break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    case 8: memcpy(to, from, 8); break;
    default: memcpy(to, from, (size_t)store->size);
  }
}

/* Copies a run, of mostly a few bytes. */
static inline void copy_run(uint8_t *to, const uint8_t *from, int64_t nbytes) {
  if (nbytes > 32) {
    memcpy(to, from, (size_t)nbytes);
    return;
  }
  for (; nbytes >= 8; nbytes -= 8, to += 8, from += 8) memcpy(to, from, 8);
  while (nbytes--) *to++ = *from++;
}

static inline int add_run(Store *store, int64_t row, const uint8_t *from, int64_t nbytes) {
  if (nbytes > store->room - store->used) return FULL;
  copy_run(store->values + store->used, from, nbytes);
  /* Divisions take as long as all else. */
  store->starts[row] = store->unit == 1 ? store->used : store->used / store->unit;
  store->lengths[row] = store->unit == 1 ? nbytes : nbytes / store->unit;
  store->used += nbytes;
  return DONE;
}

static int is_zero(const uint8_t *at, int64_t count) {
  while (count--)
    if (*at++) return 0;
  return 1;
}

/* Takes the object at `*at`, which moves behind it. */
static inline int take(const Builder *builder, const Field *field, const uint8_t **at, const uint8_t *end) {
  const uint8_t *from = *at;
  Store *store = field->what == SKIP ? NULL : builder->store + field->column;
  if (end - from < 1) return MORE;
  if (*from != field->code) {
    *at += 1;
    return *from == NOTHING && store ? add_null(store, builder->rows) : OTHER;
  }
  if (end - from < field->head) return MORE;
  int64_t nbytes = 0;
  if (field->count_at) {
    int64_t count = int_at(from + field->count_at);
    if (count < 0) return OTHER;
    nbytes = count * field->unit;
    if (end - from - field->head < nbytes) return MORE;
  }
  *at += field->head + nbytes;
  if (!store) return DONE;
  if (store->valid) store->valid[builder->rows] = 1;
  switch (field->what) {
    case DENSE:
      if (field->count_at) {
        if (nbytes != store->size) return OTHER;
        from += field->head;
      } else {
        from += 1;
      }
      add_dense(store, builder->rows, from);
      return DONE;
    case NARROW:
      if (!is_zero(from + 1 + store->size, store->size)) return OTHER;
      add_dense(store, builder->rows, from + 1);
      return DONE;
    case RUN:
      if (field->step > 1 && nbytes % field->step) return OTHER;
      return add_run(store, builder->rows, from + field->head, nbytes);
    default: return add_run(store, builder->rows, from, field->head + nbytes);
  }
}

/* The number of a form's object, or its offset in the footer. */
static int64_t offset_at(const uint8_t *footer, int32_t field, int32_t width) {
  if (width == 1) return footer[field];
  uint16_t two;
  if (width == 4) return int_at(footer + 4 * field);
  memcpy(&two, footer + 2 * field, 2);
  return two;
}

static const Form *form_of(const Builder *builder, const uint8_t *object) {
  int32_t begin = int_at(object), type_id = int_at(object + 4), schema_id = int_at(object + 16);
  if ((begin & 0xffff) != (OBJECT | 1 << 8)) return NULL;
  int32_t flags = (int32_t)((uint32_t)begin >> 16);
  for (int32_t i = 0; i < builder->forms; i++) {
    const Form *form = builder->form + i;
    if (form->type_id == type_id && form->schema_id == schema_id && form->flags == flags)
      return form;
  }
  return NULL;
}

/* Bytes of an offset in the footer. */
static int32_t offset_bytes(const Form *form) { return form->flags & 8 ? 1 : form->flags & 16 ? 2 : 4; }

/* The fields of a whole object: they, and the footer that says where they are, must fill it. */
static int take_fields(const Builder *builder, const uint8_t *object, int64_t size) {
  const Form *form = form_of(builder, object);
  if (!form || int_at(object + 12) != size || form->fields > MAX_FIELDS) return OTHER;
  int32_t width = offset_bytes(form);
  int64_t footer = (uint32_t)int_at(object + 20);
  if (footer < HEADER_BYTES || footer + (int64_t)width * form->fields != size) return OTHER;
  const uint8_t *at = object + HEADER_BYTES, *end = object + footer;
  for (int32_t i = 0; i < form->fields; i++) {
    if (offset_at(end, i, width) != at - object) return OTHER;
    const Field *field = form->field + i;
    if (field->what == SKIP) {
      Page rest = {object, footer, builder->extents};
      int64_t next = skip(&rest, at - object, 0);
      if (next == CUT) return OTHER;
      at = object + next;
      continue;
    }
    int found = take(builder, field, &at, end);
    if (found != DONE) return found == FULL ? FULL : OTHER;
  }
  if (at != end) return OTHER;
  for (int32_t i = 0; i < form->lacks; i++)
    if (add_null(builder->store + form->lacking[i], builder->rows) != DONE) return OTHER;
  return DONE;
}

static int take_value(const Builder *builder, const uint8_t **at, const uint8_t *end) {
  const uint8_t *from = *at;
  if (builder->plain) return take(builder, builder->plain, at, end);
  if (end - from < 5) return MORE;
  if (*from != WRAPPED) return OTHER;
  int64_t size = int_at(from + 1);
  if (size < HEADER_BYTES) return OTHER;
  if (end - from < 9 + size) return MORE;
  if (int_at(from + 5 + size) != 0) return OTHER;
  *at += 9 + size;
  return take_fields(builder, from + 5, size);
}

/* Undoes what rows behind the last one have added to the heaps. */
EXPORT void take_back(const Builder *builder) {
  for (int32_t i = 0; i < builder->stores; i++) {
    Store *store = builder->store + i;
    if (store->size) continue;
    int64_t last = builder->rows - 1;
    store->used = last < 0 ? 0 : (store->starts[last] + store->lengths[last]) * store->unit;
  }
}

/* Goes to the row of the next key, if it is one that was asked for. */
static void aim(Builder *builder, const uint8_t *at, const uint8_t *end) {
  const Field *key = builder->key;
  int32_t unused = 64 - 8 * (key->head - 1);
  if (unused < 0 || unused > 56) return;
  if (!builder->keys || end - at < key->head || *at != key->code) return;
  uint64_t bits = 0;
  memcpy(&bits, at + 1, key->head - 1);
  int64_t value = (int64_t)(bits << unused) >> unused;
  for (int64_t i = 0; i < builder->keys; i++)
    if (builder->asked[i] == value) builder->rows = builder->first + i;
}

/* Adds rows to the columns until one of the ends above. `*done` rows of `count` were added, which
 * are the first `*used` bytes. */
EXPORT int build(Builder *builder, const uint8_t *data, int64_t size, int64_t count, int64_t *done,
                 int64_t *used) {
  const uint8_t *at = data, *end = data + size;
  int found = DONE;
  *done = *used = 0;
  while (*done < count) {
    aim(builder, at, end);
    if (builder->rows == builder->room) return FULL;
    found = take(builder, builder->key, &at, end);
    if (found == DONE) found = take_value(builder, &at, end);
    if (found != DONE) {
      take_back(builder);
      return found;
    }
    builder->rows++;
    ++*done;
    *used = at - data;
  }
  return DONE;
}

/* Large values */

/* The bytes of the value of a counted object, or CUT where its head is not here. */
static int64_t counted_bytes(const Field *field, const uint8_t *from, const uint8_t *end) {
  if (end - from < field->head || *from != field->code || !field->count_at) return CUT;
  int64_t count = int_at(from + field->count_at);
  return count < 0 ? CUT : count * field->unit;
}

/* Sets the place of a value whose bytes end beyond `end`; whether it is one that has a place. */
static int find_place(const Builder *builder, const Field *field, const uint8_t *from,
                      const uint8_t *end, int64_t least, int64_t most, Gap *gap) {
  if (field->what != DENSE && field->what != RUN) return OTHER;
  int64_t nbytes = counted_bytes(field, from, end);
  if (nbytes < least || nbytes > most || end - from - field->head >= nbytes) return OTHER;
  Store *store = builder->store + field->column;
  if (store->size) {
    if (nbytes != store->size) return OTHER;
    gap->to = store->values + builder->rows * store->size;
  } else {
    if (field->step > 1 && nbytes % field->step) return OTHER;
    if (nbytes > store->room - store->used) return FULL;
    gap->to = store->values + store->used;
  }
  gap->nbytes = nbytes;
  gap->field = (Field *)field;
  return DONE;
}

/* Looks for a value of `least` to `most` bytes that reaches beyond these bytes, the beginning of a
 * row. DONE: it is `gap`. FULL: go on with other columns. */
EXPORT int find_gap(Builder *builder, const uint8_t *data, int64_t size, int64_t least,
                    int64_t most, Gap *gap) {
  const uint8_t *at = data, *end = data + size;
  const Field *key = builder->key;
  aim(builder, at, end);
  if (builder->rows == builder->room) return FULL;
  if (end - at < key->head || *at != key->code) return OTHER;
  int64_t nbytes = key->count_at ? counted_bytes(key, at, end) : 0;
  if (nbytes == CUT || end - at < key->head + nbytes) return OTHER;
  at += key->head + nbytes;
  if (builder->plain) {
    int found = find_place(builder, builder->plain, at, end, least, most, gap);
    gap->at = at + builder->plain->head - data;
    gap->row_bytes = gap->at + gap->nbytes;
    return found;
  }
  if (end - at < 5 + HEADER_BYTES || *at != WRAPPED) return OTHER;
  const uint8_t *object = at + 5;
  int64_t object_bytes = int_at(at + 1);
  const Form *form = form_of(builder, object);
  if (!form || object_bytes < HEADER_BYTES) return OTHER;
  at = object + HEADER_BYTES;
  for (int32_t i = 0; i < form->fields; i++) {
    const Field *field = form->field + i;
    int found = find_place(builder, field, at, end, least, most, gap);
    if (found == FULL) return FULL;
    if (found == DONE) {
      gap->at = at + field->head - data;
      gap->row_bytes = object - data + object_bytes + 4;
      /* `close_gap` writes to the footer, which has to be behind the value. */
      int64_t behind = offset_bytes(form) * (int64_t)form->fields + 4;
      return gap->at + gap->nbytes + behind <= gap->row_bytes ? DONE : OTHER;
    }
    Page rest = {object, end - object, builder->extents};
    int64_t next = skip(&rest, at - object, 0);
    if (next == CUT) return OTHER;
    at = object + next;
  }
  return OTHER;
}

static void add_to_int(uint8_t *at, int64_t change) {
  int32_t value = (int32_t)(int_at(at) + change);
  memcpy(at, &value, 4);
}

/* Makes a row that has no bytes of its gap one whose value is empty, or undoes that: all lengths and
 * offsets that count these bytes become smaller, or larger. Those before the value are in what
 * `find_gap` has looked at; those of the footer are behind it, as `find_gap` has made sure. */
static void close_gap(const Builder *builder, uint8_t *row, int64_t size, const Gap *gap, int undo) {
  int64_t change = undo ? gap->nbytes : -gap->nbytes;
  const Field *field = gap->field;
  add_to_int(row + gap->at - field->head + field->count_at, change / field->unit);
  if (builder->plain) return;
  uint8_t *wrapped = row + builder->key->head;
  if (builder->key->count_at) wrapped += int_at(row + builder->key->count_at) * builder->key->unit;
  uint8_t *object = wrapped + 5;
  add_to_int(wrapped + 1, change);
  add_to_int(object + 12, change);
  add_to_int(object + 20, change);
  const Form *form = form_of(builder, object);
  if (offset_bytes(form) != 4) return; /* nothing stands behind so large a value */
  uint8_t *footer = row + size - 4 - 4 * (int64_t)form->fields;
  for (const Field *other = field + 1; other < form->field + form->fields; other++)
    add_to_int(footer + 4 * (other - form->field), change);
}

/* Adds the row around a gap, whose value is in its place: its `size` bytes without those of the
 * gap. DONE, or OTHER, and the row is as it was. */
EXPORT int build_around(Builder *builder, uint8_t *row, int64_t size, const Gap *gap) {
  Field *field = gap->field;
  Store *store = builder->store + field->column;
  int32_t what = field->what;
  int64_t number = builder->rows, done, used;
  close_gap(builder, row, size, gap, 0);
  field->what = SKIP;
  int found = build(builder, row, size, 1, &done, &used);
  field->what = what;
  if (found != DONE || used != size) {
    if (found == DONE) builder->rows--;
    take_back(builder);
    close_gap(builder, row, size, gap, 1);
    return OTHER;
  }
  if (store->valid) store->valid[number] = 1;
  if (!store->size) {
    store->starts[number] = store->used / store->unit;
    store->lengths[number] = gap->nbytes / store->unit;
    store->used += gap->nbytes;
  }
  return DONE;
}
