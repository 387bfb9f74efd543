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

/* Type codes (TypeCode in codes.py). */
enum {
  STRING = 9, STRING_ARRAY = 20, UUID_ARRAY = 21, DATE_ARRAY = 22, OBJECT_ARRAY = 23,
  COLLECTION = 24, MAP = 25, WRAPPED = 27, ENUM_ARRAY = 29, DECIMAL = 30, DECIMAL_ARRAY = 31,
  CLASS = 32, TIMESTAMP_ARRAY = 34, PROXY = 35, TIME_ARRAY = 37, HANDLE = 102, OBJECT = 103
};
enum { HEADER_BYTES = 24, MAX_DEPTH = 64, CUT = -1 };

typedef struct {
  const uint8_t *data;
  int64_t size;
  const int32_t *fixed; /* bytes of an object of a fixed size by type code, else 0 */
  const int32_t *item;  /* bytes for each of its length, of an object of such, else 0 */
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
static int64_t skip_elements(const Page *page, int64_t at, int depth) {
  int64_t count_place = at + 1, first;
  switch (page->data[at]) {
    case STRING_ARRAY: case UUID_ARRAY: case DATE_ARRAY: case TIMESTAMP_ARRAY: case TIME_ARRAY:
    case DECIMAL_ARRAY:
      first = at + 5;
      break;
    case OBJECT_ARRAY: case ENUM_ARRAY:
      if ((count_place = skip_class(page, at + 1)) == CUT) return CUT;
      first = count_place + 4;
      break;
    case COLLECTION: case MAP:
      first = at + 6;
      break;
    default:
      return CUT;
  }
  int64_t count = length_at(page, count_place);
  if (count == CUT || count > page->size - count_place) return CUT;
  if (page->data[at] == MAP) count *= 2;
  for (; count > 0; count--)
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
  if (page->fixed[code]) return inside(page, at + page->fixed[code]);
  if (depth > MAX_DEPTH) return CUT;
  if (code == HANDLE) return inside(page, at + 5);
  if (code == OBJECT) {
    int64_t length = length_at(page, at + 12);
    return length < HEADER_BYTES ? CUT : inside(page, at + length);
  }
  if (code == DECIMAL) return after(page, at, at + 5, 9, 1);
  if (page->item[code]) return after(page, at, at + 1, 5, page->item[code]);
  if (code == WRAPPED) return after(page, at, at + 1, 9, 1);
  if (code == CLASS) return skip_class(page, at + 1);
  if (code == PROXY) return skip_proxy(page, at, depth);
  return skip_elements(page, at, depth);
}

/* Positions of `count` objects that fill the page; 0, or another number where they do not. */
EXPORT int walk(const uint8_t *data, int64_t size, int64_t count, const int32_t *fixed,
                const int32_t *item, int64_t *starts) {
  Page page = {data, size, fixed, item};
  int64_t at = 0;
  for (int64_t i = 0; i < count; i++) {
    starts[i] = at;
    if ((at = skip(&page, at, 0)) == CUT) return 1;
  }
  return at != size;
}
