/* Python's `bytes` out of a page, without a step of Python for each.
 *
 * texts.py (ctypes) -> this
 *
 * Python's functions are given at run time: no header, and nothing to link but libc.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct Object Object;

/* In the order of texts._FUNCTIONS. */
typedef struct {
  Object *(*new_bytes)(const char *, intptr_t);
  char *(*data)(Object *);
  void (*release)(Object *);
} Functions;

/* Puts the runs of bytes into an array of objects; with the GIL. With `places`, the objects are yet
 * to be filled, and where is put there. Returns how many: fewer if there is no memory, or a run lies
 * beyond the page. */
EXPORT int64_t make_bytes(const Functions *python, const char *page, int64_t size,
                          const int64_t *starts, const int64_t *lengths, int64_t count,
                          Object **out, char **places) {
  for (int64_t i = 0; i < count; i++) {
    if (starts[i] < 0 || lengths[i] < 0 || lengths[i] > size - starts[i]) return i;
    const char *bytes = places ? NULL : page + starts[i];
    Object *found = python->new_bytes(bytes, (intptr_t)lengths[i]), *before = out[i];
    if (!found) return i;
    out[i] = found;
    if (places) places[i] = python->data(found);
    if (before) python->release(before);
  }
  return count;
}

/* Copies the runs of bytes to their places; needs no GIL. */
EXPORT void fill_bytes(const char *page, const int64_t *starts, const int64_t *lengths,
                       int64_t count, char *const *places) {
  for (int64_t i = 0; i < count; i++) memcpy(places[i], page + starts[i], (size_t)lengths[i]);
}
