/* TensorFlow filesystem plugin that forwards every operation to functions given at run time.
 *
 * TensorFlow -> this -> gfile.py (ctypes callbacks) -> handles.py -> store
 *
 * No Python.h, no TensorFlow header, nothing to link but libc: one build serves every CPython and
 * every TensorFlow 2 whose filesystem ABI number is 0. The structs below state that interface's
 * members and their order (filesystem_interface.h, the same from 2.12 to 2.21).
 *
 * Four guards that cannot be made in Python:
 * - The verdict of a callback is an out-parameter preset to "interrupted", set by its last act. A
 *   callback that Ctrl-C leaves at its first bytecode is never taken for a success.
 * - A gate: after shutdown no call reaches a finalizing interpreter. A thread of Python's that comes
 *   too late waits there for the end of the process: it would be ended while it asks for the GIL,
 *   inside TensorFlow's C++, which aborts the process.
 * - An exception that the thread has set already (StopIteration while an iterator is destroyed) is
 *   put aside around each callback.
 * - Own get_matching_paths: the default one calls back from other threads while the GIL is held.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

/* ---- TensorFlow's side ---- */

typedef struct TF_Status TF_Status;
typedef struct { void *p; } Object; /* TF_Filesystem, TF_RandomAccessFile, TF_WritableFile, ... */
typedef struct { int64_t length, mtime_nsec; bool is_directory; } Stats;

enum {
  OK = 0, CANCELLED = 1, INVALID_ARGUMENT = 3, RESOURCE_EXHAUSTED = 8, FAILED_PRECONDITION = 9,
  OUT_OF_RANGE = 11, INTERNAL = 13, UNAVAILABLE = 14
};

typedef struct {
  void (*cleanup)(Object *);
  int64_t (*read)(const Object *, uint64_t offset, size_t n, char *buffer, TF_Status *);
} RandomAccessOps;

typedef struct {
  void (*cleanup)(Object *);
  void (*append)(const Object *, const char *buffer, size_t n, TF_Status *);
  int64_t (*tell)(const Object *, TF_Status *);
  void (*flush)(const Object *, TF_Status *);
  void (*sync)(const Object *, TF_Status *);
  void (*close)(const Object *, TF_Status *);
} WritableOps;

typedef struct {
  void (*cleanup)(Object *);
  const void *(*data)(const Object *);
  uint64_t (*length)(const Object *);
} RegionOps;

typedef struct {
  void (*init)(Object *, TF_Status *);
  void (*cleanup)(Object *);
  void (*new_random_access)(const Object *, const char *, Object *, TF_Status *);
  void (*new_writable)(const Object *, const char *, Object *, TF_Status *);
  void (*new_appendable)(const Object *, const char *, Object *, TF_Status *);
  void (*new_region)(const Object *, const char *, Object *, TF_Status *);
  void (*create_dir)(const Object *, const char *, TF_Status *);
  void (*recursively_create_dir)(const Object *, const char *, TF_Status *);
  void (*delete_file)(const Object *, const char *, TF_Status *);
  void (*delete_dir)(const Object *, const char *, TF_Status *);
  void (*delete_recursively)(const Object *, const char *, uint64_t *, uint64_t *, TF_Status *);
  void (*rename_file)(const Object *, const char *, const char *, TF_Status *);
  void (*copy_file)(const Object *, const char *, const char *, TF_Status *);
  void (*path_exists)(const Object *, const char *, TF_Status *);
  bool (*paths_exist)(const Object *, char **, int, TF_Status **);
  void (*stat)(const Object *, const char *, Stats *, TF_Status *);
  bool (*is_directory)(const Object *, const char *, TF_Status *);
  int64_t (*get_file_size)(const Object *, const char *, TF_Status *);
  char *(*translate_name)(const Object *, const char *);
  int (*get_children)(const Object *, const char *, char ***, TF_Status *);
  int (*get_matching_paths)(const Object *, const char *, char ***, TF_Status *);
  void (*flush_caches)(const Object *);
  void *later[11]; /* transactions, configuration: not provided; the table is passed shorter */
} FilesystemOps;

typedef struct {
  char *scheme;
  int fs_abi, fs_api;
  size_t fs_size;
  FilesystemOps *fs;
  int random_abi, random_api;
  size_t random_size;
  RandomAccessOps *random;
  int writable_abi, writable_api;
  size_t writable_size;
  WritableOps *writable;
  int region_abi, region_api;
  size_t region_size;
  RegionOps *region;
} PluginOps;

typedef struct {
  size_t schemes;
  PluginOps *ops;
  void *(*allocate)(size_t);
  void (*release)(void *);
} PluginInfo;

/* ---- Python's side; the same members as gfile._Callbacks ---- */

enum {
  PATH_EXISTS, PATH_STAT, PATH_MKDIR, PATH_MAKEDIRS, PATH_UNLINK, PATH_RMDIR, PATH_RMTREE,
  PATH_RENAME, PATH_COPY
};
enum { FILE_TELL, FILE_FLUSH, FILE_CLOSE, FILE_FREE };

/* Each callback ends with *verdict = TensorFlow's code + 1; 0 means that it did not get there. */
typedef struct {
  void (*set_status)(TF_Status *, int code, const char *message);
  void (*open)(const char *path, const char *mode, int64_t *handle, char *error, size_t size,
               int *verdict);
  void (*read)(int64_t handle, uint64_t offset, size_t n, char *buffer, int64_t *got, char *error,
               size_t size, int *verdict);
  void (*write)(int64_t handle, const char *buffer, size_t n, char *error, size_t size,
                int *verdict);
  void (*control)(int64_t handle, int what, int64_t *out, char *error, size_t size, int *verdict);
  void (*path)(int operation, const char *a, const char *b, int64_t *out, char *error, size_t size,
               int *verdict);
  void (*list)(int glob, const char *path, char **block, size_t *length, char *error, size_t size,
               int *verdict);
  /* functions of CPython's stable ABI */
  int (*gil_ensure)(void);
  void (*gil_release)(int);
  int (*gil_check)(void);
  void *(*thread_state)(void);
  void (*error_fetch)(void **, void **, void **);
  void (*error_restore)(void *, void *, void *);
} Callbacks;

#define ERROR_SIZE 1024
#define LATE_WAIT_S 8

typedef struct {
  int gil;
  void *type, *value, *traceback;
  int verdict;
  char error[ERROR_SIZE];
} Call;

enum { UNCONFIGURED, LIVE, SHUT };

static Callbacks python;
static char scheme_name[64];
static atomic_int state;
static atomic_long in_flight;

static _Thread_local bool shutting; /* the thread that called igfs_shut */

/* Not for TensorFlow's own threads, which it joins at exit, nor while the GIL is held; and not
 * without end, in case TensorFlow waits for a thread that runs a Python function. */
static void wait_for_the_end(void) {
  struct timespec limit = {LATE_WAIT_S, 0};
  if (!shutting && python.thread_state() && !python.gil_check())
    while (nanosleep(&limit, &limit) != 0) {
    }
}

static bool enter(Call *call, TF_Status *status) {
  call->verdict = 0;
  call->error[0] = 0;
  atomic_fetch_add(&in_flight, 1);
  if (atomic_load(&state) == LIVE) {
    call->gil = python.gil_ensure();
    python.error_fetch(&call->type, &call->value, &call->traceback);
    return true;
  }
  atomic_fetch_sub(&in_flight, 1);
  if (atomic_load(&state) == SHUT) wait_for_the_end();
  if (status && python.set_status)
    python.set_status(status, UNAVAILABLE, "igfs: the Python interpreter has shut down");
  return false;
}

static int leave(Call *call, TF_Status *status) {
  int code = call->verdict == 0 ? CANCELLED : call->verdict - 1;
  const char *message = code == OK ? "" : call->verdict == 0 ? "igfs: interrupted" : call->error;
  python.error_restore(call->type, call->value, call->traceback);
  python.gil_release(call->gil);
  if (status) python.set_status(status, code, message);
  atomic_fetch_sub(&in_flight, 1);
  return code;
}

static int on_path(int operation, const char *a, const char *b, int64_t *out, TF_Status *status) {
  Call call;
  int64_t spare[4] = {0};
  if (!enter(&call, status)) return UNAVAILABLE;
  python.path(operation, a, b, out ? out : spare, call.error, ERROR_SIZE, &call.verdict);
  return leave(&call, status);
}

static int on_file(const Object *file, int what, int64_t *out, TF_Status *status) {
  Call call;
  int64_t spare = -1;
  if (!enter(&call, status)) return UNAVAILABLE;
  python.control((int64_t)(intptr_t)file->p, what, out ? out : &spare, call.error, ERROR_SIZE,
                 &call.verdict);
  return leave(&call, status);
}

static void on_open(const char *path, const char *mode, Object *file, TF_Status *status) {
  Call call;
  int64_t handle = 0;
  file->p = NULL;
  if (!enter(&call, status)) return;
  python.open(path, mode, &handle, call.error, ERROR_SIZE, &call.verdict);
  if (leave(&call, status) == OK) file->p = (void *)(intptr_t)handle;
}

/* ---- files ---- */

static void file_cleanup(Object *file) {
  if (file->p) on_file(file, FILE_FREE, NULL, NULL);
  file->p = NULL;
}

static int64_t file_read(const Object *file, uint64_t offset, size_t n, char *buffer,
                         TF_Status *status) {
  Call call;
  int64_t got = -1;
  if (!enter(&call, status)) return -1;
  python.read((int64_t)(intptr_t)file->p, offset, n, buffer, &got, call.error, ERROR_SIZE,
              &call.verdict);
  int code = leave(&call, status);
  return code == OK || code == OUT_OF_RANGE ? got : -1;
}

static void file_append(const Object *file, const char *buffer, size_t n, TF_Status *status) {
  Call call;
  if (!enter(&call, status)) return;
  python.write((int64_t)(intptr_t)file->p, buffer, n, call.error, ERROR_SIZE, &call.verdict);
  leave(&call, status);
}

static int64_t file_tell(const Object *file, TF_Status *status) {
  int64_t position = -1;
  return on_file(file, FILE_TELL, &position, status) == OK ? position : -1;
}

static void file_flush(const Object *file, TF_Status *status) {
  on_file(file, FILE_FLUSH, NULL, status);
}

static void file_close(const Object *file, TF_Status *status) {
  on_file(file, FILE_CLOSE, NULL, status);
}

/* ---- read-only memory regions: the file, read whole ---- */

typedef struct { void *data; uint64_t length; } Region;

static void region_cleanup(Object *region) {
  if (region->p) {
    free(((Region *)region->p)->data);
    free(region->p);
  }
  region->p = NULL;
}

static const void *region_data(const Object *region) { return ((Region *)region->p)->data; }
static uint64_t region_length(const Object *region) { return ((Region *)region->p)->length; }

static void fs_region(const Object *fs, const char *path, Object *region, TF_Status *status) {
  (void)fs;
  int64_t facts[4] = {0};
  Object file;
  region->p = NULL;
  if (on_path(PATH_STAT, path, NULL, facts, status) != OK) return;
  if (facts[2]) {
    python.set_status(status, FAILED_PRECONDITION, "igfs: is a directory");
    return;
  }
  if (facts[0] == 0) {
    python.set_status(status, INVALID_ARGUMENT, "igfs: an empty file has no memory region");
    return;
  }
  on_open(path, "rb", &file, status);
  if (!file.p) return;
  Region *made = malloc(sizeof *made);
  void *data = NULL;
  /* constant tensors must begin at a multiple of 64 */
  if (posix_memalign(&data, 64, (size_t)facts[0])) data = NULL;
  if (!made || !data) {
    python.set_status(status, RESOURCE_EXHAUSTED, "igfs: no memory for the region");
  } else {
    int64_t got = file_read(&file, 0, (size_t)facts[0], data, status);
    if (got == facts[0]) {
      made->data = data;
      made->length = (uint64_t)got;
      region->p = made;
    } else if (got >= 0) {
      python.set_status(status, INTERNAL, "igfs: short read");
    }
  }
  file_cleanup(&file);
  if (!region->p) {
    free(data);
    free(made);
  }
}

/* ---- the filesystem ---- */

static void fs_init(Object *fs, TF_Status *status) {
  fs->p = NULL;
  python.set_status(status, OK, "");
}

static void fs_cleanup(Object *fs) { (void)fs; }

#define OPEN(name, mode)                                                                      \
  static void name(const Object *fs, const char *path, Object *file, TF_Status *status) {     \
    (void)fs;                                                                                 \
    on_open(path, mode, file, status);                                                        \
  }
#define ONE_PATH(name, operation)                                                             \
  static void name(const Object *fs, const char *path, TF_Status *status) {                   \
    (void)fs;                                                                                 \
    on_path(operation, path, NULL, NULL, status);                                             \
  }
#define TWO_PATHS(name, operation)                                                            \
  static void name(const Object *fs, const char *a, const char *b, TF_Status *status) {       \
    (void)fs;                                                                                 \
    on_path(operation, a, b, NULL, status);                                                   \
  }
OPEN(fs_random_access, "rb")
OPEN(fs_writable, "wb")
OPEN(fs_appendable, "ab")
ONE_PATH(fs_mkdir, PATH_MKDIR)
ONE_PATH(fs_makedirs, PATH_MAKEDIRS)
ONE_PATH(fs_unlink, PATH_UNLINK)
ONE_PATH(fs_rmdir, PATH_RMDIR)
ONE_PATH(fs_exists, PATH_EXISTS)
TWO_PATHS(fs_rename, PATH_RENAME)
TWO_PATHS(fs_copy, PATH_COPY)

static void fs_rmtree(const Object *fs, const char *path, uint64_t *files, uint64_t *directories,
                      TF_Status *status) {
  (void)fs;
  int code = on_path(PATH_RMTREE, path, NULL, NULL, status);
  *files = 0;
  *directories = code == OK ? 0 : 1;
}

static void fs_stat(const Object *fs, const char *path, Stats *stats, TF_Status *status) {
  (void)fs;
  int64_t facts[4] = {0};
  if (on_path(PATH_STAT, path, NULL, facts, status) == OK) {
    stats->length = facts[0];
    stats->mtime_nsec = facts[1];
    stats->is_directory = facts[2] != 0;
  }
}

static bool fs_is_directory(const Object *fs, const char *path, TF_Status *status) {
  (void)fs;
  int64_t facts[4] = {0};
  if (on_path(PATH_STAT, path, NULL, facts, status) != OK) return false;
  /* core looks at the status only */
  if (!facts[2]) python.set_status(status, FAILED_PRECONDITION, "Not a directory");
  return facts[2] != 0;
}

static int64_t fs_size(const Object *fs, const char *path, TF_Status *status) {
  (void)fs;
  int64_t facts[4] = {0};
  if (on_path(PATH_STAT, path, NULL, facts, status) != OK) return -1;
  if (facts[2]) {
    python.set_status(status, FAILED_PRECONDITION, "Is a directory");
    return -1;
  }
  return facts[0];
}

/* scheme://authority/a//b/./../c -> scheme://authority/a/c; core's own drops the authority */
static char *fs_translate(const Object *fs, const char *uri) {
  (void)fs;
  size_t length = strlen(uri);
  char *out = malloc(length + 3), *to = out, *root;
  if (!out) abort();
  const char *from = strstr(uri, "://");
  if (from) {
    const char *end = strchr(from + 3, '/');
    if (!end) end = uri + length;
    memcpy(out, uri, (size_t)(end - uri));
    to += end - uri;
    from = end;
  } else {
    from = uri;
  }
  root = to;
  *to++ = '/';
  while (*from) {
    while (*from == '/') from++;
    const char *end = from;
    while (*end && *end != '/') end++;
    size_t size = (size_t)(end - from);
    if (size == 2 && from[0] == '.' && from[1] == '.') {
      while (to > root + 1 && *--to != '/') {
      }
      if (to < root + 1) to = root + 1;
    } else if (size > 1 || (size == 1 && from[0] != '.')) {
      if (to[-1] != '/') *to++ = '/';
      memcpy(to, from, size);
      to += size;
    }
    from = end;
  }
  *to = 0;
  return out;
}

static int on_list(int glob, const char *path, char ***entries, TF_Status *status) {
  Call call;
  char *block = NULL;
  size_t length = 0;
  int count = 0, done = 0;
  *entries = NULL;
  if (!enter(&call, status)) return -1;
  python.list(glob, path, &block, &length, call.error, ERROR_SIZE, &call.verdict);
  if (leave(&call, status) != OK) {
    free(block);
    return -1;
  }
  for (size_t i = 0; i < length; i++) count += block[i] == 0;
  char **names = malloc(sizeof *names * (size_t)(count ? count : 1));
  for (const char *name = block; names && done < count; name += strlen(name) + 1)
    if (!(names[done++] = strdup(name))) abort();
  free(block);
  if (!names) abort();
  *entries = names;
  return count;
}

static int fs_children(const Object *fs, const char *path, char ***entries, TF_Status *status) {
  (void)fs;
  return on_list(0, path, entries, status);
}

static int fs_matching(const Object *fs, const char *pattern, char ***entries, TF_Status *status) {
  char *translated = fs_translate(fs, pattern); /* core passes the pattern as it was given */
  int count = on_list(1, translated, entries, status);
  free(translated);
  return count;
}

static void fs_flush_caches(const Object *fs) { (void)fs; } /* nothing is cached */

/* ---- exported ---- */

EXPORT void *igfs_allocate(size_t n) { return malloc(n); }

EXPORT int igfs_configure(const Callbacks *callbacks, const char *scheme) {
  if (atomic_load(&state) != UNCONFIGURED) return -1;
  python = *callbacks;
  snprintf(scheme_name, sizeof scheme_name, "%s", scheme);
  atomic_store(&state, LIVE);
  return 0;
}

/* At exit, without the GIL: refuse new calls and wait for those under way; gives how many remain. */
EXPORT long igfs_shut(int wait_ms) {
  struct timespec pause = {0, 1000000};
  shutting = true;
  atomic_store(&state, SHUT);
  while (wait_ms-- > 0 && atomic_load(&in_flight) > 0) nanosleep(&pause, NULL);
  return atomic_load(&in_flight);
}

EXPORT void TF_InitPlugin(PluginInfo *info) {
  info->allocate = malloc;
  info->release = free;
  info->schemes = 0;
  info->ops = NULL;
  if (atomic_load(&state) != LIVE) return;
  PluginOps *ops = calloc(1, sizeof *ops);
  FilesystemOps *fs = calloc(1, sizeof *fs);
  RandomAccessOps *random = calloc(1, sizeof *random);
  WritableOps *writable = calloc(1, sizeof *writable);
  RegionOps *region = calloc(1, sizeof *region);
  char *scheme = strdup(scheme_name);
  if (!ops || !fs || !random || !writable || !region || !scheme) abort();
  *fs = (FilesystemOps){
      .init = fs_init,
      .cleanup = fs_cleanup,
      .new_random_access = fs_random_access,
      .new_writable = fs_writable,
      .new_appendable = fs_appendable,
      .new_region = fs_region,
      .create_dir = fs_mkdir,
      .recursively_create_dir = fs_makedirs,
      .delete_file = fs_unlink,
      .delete_dir = fs_rmdir,
      .delete_recursively = fs_rmtree,
      .rename_file = fs_rename,
      .copy_file = fs_copy,
      .path_exists = fs_exists,
      .stat = fs_stat,
      .is_directory = fs_is_directory,
      .get_file_size = fs_size,
      .translate_name = fs_translate,
      .get_children = fs_children,
      .get_matching_paths = fs_matching,
      .flush_caches = fs_flush_caches,
  };
  *random = (RandomAccessOps){.cleanup = file_cleanup, .read = file_read};
  *writable = (WritableOps){
      .cleanup = file_cleanup,
      .append = file_append,
      .tell = file_tell,
      .flush = file_flush,
      .sync = file_flush,
      .close = file_close,
  };
  *region = (RegionOps){
      .cleanup = region_cleanup, .data = region_data, .length = region_length};
  *ops = (PluginOps){
      .scheme = scheme,
      .fs_size = offsetof(FilesystemOps, later),
      .fs = fs,
      .random_size = sizeof *random,
      .random = random,
      .writable_size = sizeof *writable,
      .writable = writable,
      .region_size = sizeof *region,
      .region = region,
  };
  info->schemes = 1;
  info->ops = ops;
}
