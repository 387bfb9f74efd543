/* What the files share that add functions, not classes, to the module. */
#ifndef IGNITETF_FUNCTIONS_H
#define IGNITETF_FUNCTIONS_H

#include "abi3.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Work on more bytes than this is done without the GIL. */
enum { MANY_BYTES = 64 << 10 };

/* Of each file, ended by an entry without a name. */
extern PyMethodDef bytes_methods[], hash_methods[], igfs_methods[], objects_methods[],
    strings_methods[];
void begin_hash(void);

/* Runs of bytes in a page; none reaches beyond it. */
typedef struct {
  const uint8_t *page;
  const int64_t *starts, *lengths; /* NULL: each has `width` bytes, `stride` behind the one before */
  int64_t count, width, stride, nbytes;
} Runs;

/* functions.c: 0, or -1 with an error */
int find_runs(Runs *runs, const Py_buffer *page, const Py_buffer *starts, const Py_buffer *lengths);
int holds(const Py_buffer *array, int64_t count, size_t size);
void release_all(Py_buffer *views, int count);
void *function_of(void *library, const char *name);
void *library_of(const char *path);

static inline const uint8_t *run_at(const Runs *runs, int64_t i) {
  return runs->page + (runs->starts ? runs->starts[i] : i * runs->stride);
}
static inline int64_t run_length(const Runs *runs, int64_t i) {
  return runs->lengths ? runs->lengths[i] : runs->width;
}

#endif
