/* Where the objects of a page stand: each tells its length, so they are found one by one.
 *
 * objects.py (walk.py, ctypes) -> this
 *
 * The same steps as `_skip` and `elements_at` in objects.py, which say what is wrong with a page
 * that this gives up on.
 */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* Type codes (TypeCode in codes.py) of objects whose end no table tells. */
enum { STRING = 9, CLASS = 32, PROXY = 35, OBJECT = 103 };
enum { HEADER_BYTES = 24, CLASS_ID_END = 5, MAX_DEPTH = 64, CUT = -1 };

/* Where the objects of one type end (Extent in datatypes.py). */
typedef struct {
  int32_t head, unit, objects, count_at, class_id;
} Extent;

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
  return first;
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
