/* Python's `bytes` out of a page, without a step of Python for each.
 *
 * texts.py (ctypes, which holds the GIL) -> this
 *
 * Python's functions are given at run time: no header, and nothing to link but libc.
 */
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct Object Object;

/* In the order of texts._FUNCTIONS. */
typedef struct {
  Object *(*new_bytes)(const char *, intptr_t);
  void (*release)(Object *);
} Functions;

/* Puts the runs of bytes into an array of objects; returns how many: fewer if there is no memory, or
 * a run lies beyond the page. */
EXPORT int64_t make_bytes(const Functions *python, const char *page, int64_t size,
                          const int64_t *starts, const int64_t *lengths, int64_t count,
                          Object **out) {
  for (int64_t i = 0; i < count; i++) {
    if (starts[i] < 0 || lengths[i] < 0 || lengths[i] > size - starts[i]) return i;
    Object *found = python->new_bytes(page + starts[i], (intptr_t)lengths[i]), *before = out[i];
    if (!found) return i;
    out[i] = found;
    if (before) python->release(before);
  }
  return count;
}
