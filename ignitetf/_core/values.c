/* Copies values and rows from the bytes of an answer to their places. */
#include "lane.h"

enum { MOST_DEPTH = 64 };

/* Returns where the id of a class ends, including the name that follows an id of 0. */
static int64_t class_end(const uint8_t *bytes, int64_t at, int64_t size) {
  if (at + 9 > size) return at + 4 <= size && int32_at(bytes + at) ? at + 4 : MORE;
  if (int32_at(bytes + at)) return at + 4;
  int64_t length = int32_at(bytes + at + 5);
  return bytes[at + 4] != STRING || length < 0 ? IMPOSSIBLE : at + 9 + length;
}

/* Returns where a proxy ends: it has the ids of its interfaces, then the object that it wraps. */
static int64_t proxy_end(const Extent *extents, const uint8_t *bytes, int64_t at, int64_t size,
                         int depth) {
  if (at + 5 > size) return MORE;
  int64_t count = int32_at(bytes + at + 1), end = at + 5;
  if (count < 0) return IMPOSSIBLE;
  for (; count > 0; count--)
    if ((end = class_end(bytes, end, size)) < 0) return end;
  return value_end(extents, bytes, end, size, depth + 1);
}

/* Returns where the value at `at` ends. MORE: more bytes are needed to know it; OTHER: the core does
 * not know its type; IMPOSSIBLE: it is damaged. */
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

/* Returns the address to which the bytes of a run are written. */
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

/* Lands a value that is completely in memory, up to `end`. */
int land_value(Lane *lane, int32_t number, int64_t row, const uint8_t *value, const uint8_t *end) {
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

/* Reads the head of an object of `size` bytes; IS_LEFT if the core does not know such an object. */
int read_head(const uint8_t *object, int64_t size, Head *head) {
  if (size < OBJECT_HEAD || object[0] != OBJECT || int32_at(object + 12) != size) return IS_LEFT;
  head->flags = uint16_at(object + 2);
  head->type_id = int32_at(object + 4);
  head->schema_id = int32_at(object + 16);
  head->footer = int32_at(object + 20);
  head->size = size;
  head->width = head->flags & 8 ? 1 : head->flags & 16 ? 2 : 4;
  return head->footer < OBJECT_HEAD || head->footer > size ? IS_LEFT : LANDED;
}

int form_of(Lane *lane, const Head *head) {
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

/* Lands an object that is completely in memory. */
int land_object(Lane *lane, int64_t row, const uint8_t *object, int64_t size) {
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

/* Lands an object whose bytes are still arriving; the lane's next byte is the object's first. */
int land_arriving(Lane *lane, int64_t row, const Head *head) {
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
