/* Shared by the files that add functions, not classes, to the module. */
#ifndef IGNITETF_FUNCTIONS_H
#define IGNITETF_FUNCTIONS_H

#include "abi3.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The GIL is released for work on more bytes than this. */
enum { MANY_BYTES = 64 << 10 };

/* The functions of each file; an entry without a name ends each list. */
extern PyMethodDef bytes_methods[], hash_methods[], igfs_methods[], objects_methods[],
    strings_methods[];
void begin_hash(void);

/* Runs of bytes in a page; all of them are inside the page. */
typedef struct {
  const uint8_t *page;
  const int64_t *starts, *lengths; /* NULL: runs of `width` bytes, one every `stride` bytes */
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
