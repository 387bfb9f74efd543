/* TensorFlow filesystem plugin that forwards every operation to a Python object.
 *
 * TensorFlow -> this -> handles.py -> store
 *
 * It uses no TensorFlow header, so one build works with every TensorFlow 2 whose filesystem ABI
 * number is 0. The structs below declare that interface's members in their order
 * (filesystem_interface.h, the same from 2.12 to 2.21). TensorFlow finds TF_InitPlugin in the file of
 * this module.
 *
 * Four guards:
 * - A call that Ctrl-C interrupts returns CANCELLED, never success.
 * - A gate: after shutdown no call reaches a finalizing interpreter. A Python thread that calls too
 *   late waits at the gate until the process ends. Otherwise Python would end that thread when it
 *   requests the GIL, inside TensorFlow's C++, and that aborts the process.
 * - If the thread already has an exception set (StopIteration while an iterator is destroyed), it is
 *   saved and restored around each call.
 * - It implements get_matching_paths, because the default one calls back from other threads while the
 *   GIL is held.
 */
#define _GNU_SOURCE
#include "functions.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

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
  void *later[11]; /* transactions, configuration: not provided; a shorter table is passed */
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

/* ---- Python's side ---- */

enum { LATE_WAIT_S = 8 };
enum { UNCONFIGURED, LIVE, SHUT };

static PyObject *handles; /* handles.Handles, whose methods are called */
static PyObject *told;    /* handles.told: the code and the message of an error */
static void (*set_status)(TF_Status *, int code, const char *message);
static int (*gil_check)(void); /* may be missing, because it is not in the stable ABI */
static char scheme_name[64];
static atomic_int state;
static atomic_long in_flight;

static _Thread_local bool shutting; /* the thread that called shut_igfs */

typedef struct {
  PyGILState_STATE gil;
  PyObject *type, *value, *traceback; /* the exception that was set before the call */
} Call;

/* Blocks a late Python thread until the process ends. TensorFlow's own threads do not wait, because
 * TensorFlow joins them at exit; nor does a thread that holds the GIL. The wait has a limit, in case
 * TensorFlow waits for a thread that runs a Python function. */
static void wait_for_the_end(void) {
  struct timespec limit = {LATE_WAIT_S, 0};
  if (!shutting && PyGILState_GetThisThreadState() && !(gil_check && gil_check()))
    while (nanosleep(&limit, &limit) != 0) {
    }
}

static bool enter(Call *call, TF_Status *status) {
  atomic_fetch_add(&in_flight, 1);
  if (atomic_load(&state) == LIVE) {
    call->gil = PyGILState_Ensure();
    PyErr_Fetch(&call->type, &call->value, &call->traceback);
    return true;
  }
  atomic_fetch_sub(&in_flight, 1);
  if (atomic_load(&state) == SHUT) wait_for_the_end();
  if (status && set_status)
    set_status(status, UNAVAILABLE, "igfs: the Python interpreter has shut down");
  return false;
}

/* Clears Python's error and reports it to TensorFlow. */
static int fail(TF_Status *status) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  PyObject *answer = error ? PyObject_CallFunctionObjArgs(told, error, NULL) : NULL;
  int code = CANCELLED;
  const char *message = "igfs: interrupted";
  if (!answer || !PyArg_ParseTuple(answer, "iy", &code, &message)) {
    PyErr_Clear(); /* Ctrl-C, again */
    code = CANCELLED;
    message = "igfs: interrupted";
  }
  if (status) set_status(status, code, message);
  Py_XDECREF(answer);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(traceback);
  return code;
}

/* Ends a call and releases its `result`; NULL means an error. */
static int leave(Call *call, PyObject *result, TF_Status *status) {
  int code = OK;
  if (!result)
    code = fail(status);
  else if (status)
    set_status(status, OK, "");
  Py_XDECREF(result);
  PyErr_Restore(call->type, call->value, call->traceback);
  PyGILState_Release(call->gil);
  atomic_fetch_sub(&in_flight, 1);
  return code;
}

static PyObject *path_of(const char *path) { return PyUnicode_DecodeFSDefault(path); }

/* Calls a method with one or two paths. */
static PyObject *with_paths(const char *method, const char *a, const char *b) {
  PyObject *first = path_of(a), *second = b ? path_of(b) : NULL, *result = NULL;
  if (first && (second || !b))
    result = b ? PyObject_CallMethod(handles, method, "OO", first, second)
               : PyObject_CallMethod(handles, method, "O", first);
  Py_XDECREF(first);
  Py_XDECREF(second);
  return result;
}

static int on_path(const char *method, const char *a, const char *b, TF_Status *status) {
  Call call;
  if (!enter(&call, status)) return UNAVAILABLE;
  return leave(&call, with_paths(method, a, b), status);
}

static int on_stat(const char *path, Stats *stats, TF_Status *status) {
  Call call;
  long long length, mtime_ns;
  int is_directory;
  if (!enter(&call, status)) return UNAVAILABLE;
  PyObject *result = with_paths("stat", path, NULL);
  if (result && PyArg_ParseTuple(result, "LLp", &length, &mtime_ns, &is_directory))
    *stats = (Stats){length, mtime_ns, is_directory};
  else
    Py_CLEAR(result);
  return leave(&call, result, status);
}

static long long handle_of(const Object *file) { return (long long)(intptr_t)file->p; }

/* Calls a method of an open file; `number` receives its result, -1 for an error. */
static int on_file(const Object *file, const char *method, int64_t *number, TF_Status *status) {
  Call call;
  if (!enter(&call, status)) return UNAVAILABLE;
  PyObject *result = PyObject_CallMethod(handles, method, "L", handle_of(file));
  if (result && number && (*number = PyLong_AsLongLong(result)) == -1 && PyErr_Occurred())
    Py_CLEAR(result);
  return leave(&call, result, status);
}

static void on_open(const char *path, const char *mode, Object *file, TF_Status *status) {
  Call call;
  int64_t handle = 0;
  file->p = NULL;
  if (!enter(&call, status)) return;
  PyObject *name = path_of(path);
  PyObject *result = name ? PyObject_CallMethod(handles, "open", "Os", name, mode) : NULL;
  Py_XDECREF(name);
  if (result && (handle = PyLong_AsLongLong(result)) == -1) Py_CLEAR(result);
  if (leave(&call, result, status) == OK) file->p = (void *)(intptr_t)handle;
}

/* Invalidates the view, so that Python cannot use TensorFlow's memory after the call. */
static void release(PyObject *view) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyObject *done = PyObject_CallMethod(view, "release", NULL);
  if (!done) PyErr_Clear();
  Py_XDECREF(done);
  Py_DECREF(view);
  PyErr_Restore(type, error, traceback);
}

/* ---- files ---- */

static char none; /* its address is used for empty data */

static void file_cleanup(Object *file) {
  if (file->p) on_file(file, "free", NULL, NULL);
  file->p = NULL;
}

static int64_t file_read(const Object *file, uint64_t offset, size_t n, char *buffer,
                         TF_Status *status) {
  Call call;
  int64_t got = -1;
  if (!enter(&call, status)) return -1;
  PyObject *view = PyMemoryView_FromMemory(n ? buffer : &none, (Py_ssize_t)n, PyBUF_WRITE);
  PyObject *result = NULL;
  if (view) {
    result = PyObject_CallMethod(handles, "read", "LKO", handle_of(file),
                                 (unsigned long long)offset, view);
    release(view);
  }
  if (result && (got = PyLong_AsLongLong(result)) == -1) Py_CLEAR(result);
  if (leave(&call, result, status) != OK) return -1;
  if ((uint64_t)got < n) set_status(status, OUT_OF_RANGE, "");
  return got;
}

static void file_append(const Object *file, const char *buffer, size_t n, TF_Status *status) {
  Call call;
  if (!enter(&call, status)) return;
  PyObject *view = PyMemoryView_FromMemory(n ? (char *)buffer : &none, (Py_ssize_t)n, PyBUF_READ);
  PyObject *result = NULL;
  if (view) {
    result = PyObject_CallMethod(handles, "write", "LO", handle_of(file), view);
    release(view);
  }
  leave(&call, result, status);
}

static int64_t file_tell(const Object *file, TF_Status *status) {
  int64_t position = -1;
  return on_file(file, "tell", &position, status) == OK ? position : -1;
}

static void file_flush(const Object *file, TF_Status *status) {
  on_file(file, "flush", NULL, status);
}

static void file_close(const Object *file, TF_Status *status) {
  on_file(file, "close", NULL, status);
}

/* ---- read-only memory regions: the whole file is read ---- */

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
  Stats stats;
  Object file;
  region->p = NULL;
  if (on_stat(path, &stats, status) != OK) return;
  if (stats.is_directory) {
    set_status(status, FAILED_PRECONDITION, "igfs: is a directory");
    return;
  }
  if (stats.length <= 0) {
    set_status(status, INVALID_ARGUMENT, "igfs: an empty file has no memory region");
    return;
  }
  on_open(path, "rb", &file, status);
  if (!file.p) return;
  Region *made = malloc(sizeof *made);
  void *data = NULL;
  /* constant tensors must begin at a multiple of 64 */
  if (posix_memalign(&data, 64, (size_t)stats.length)) data = NULL;
  if (!made || !data) {
    set_status(status, RESOURCE_EXHAUSTED, "igfs: no memory for the region");
  } else {
    int64_t got = file_read(&file, 0, (size_t)stats.length, data, status);
    if (got == stats.length) {
      made->data = data;
      made->length = (uint64_t)got;
      region->p = made;
    } else if (got >= 0) {
      set_status(status, INTERNAL, "igfs: short read");
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
  set_status(status, OK, "");
}

static void fs_cleanup(Object *fs) { (void)fs; }

#define OPEN(name, mode)                                                                      \
  static void name(const Object *fs, const char *path, Object *file, TF_Status *status) {     \
    (void)fs;                                                                                 \
    on_open(path, mode, file, status);                                                        \
  }
#define ONE_PATH(name, method)                                                                \
  static void name(const Object *fs, const char *path, TF_Status *status) {                   \
    (void)fs;                                                                                 \
    on_path(method, path, NULL, status);                                             \
  }
#define TWO_PATHS(name, method)                                                               \
  static void name(const Object *fs, const char *a, const char *b, TF_Status *status) {       \
    (void)fs;                                                                                 \
    on_path(method, a, b, status);                                                   \
  }
OPEN(fs_random_access, "rb")
OPEN(fs_writable, "wb")
OPEN(fs_appendable, "ab")
ONE_PATH(fs_mkdir, "mkdir")
ONE_PATH(fs_makedirs, "makedirs")
ONE_PATH(fs_unlink, "unlink")
ONE_PATH(fs_rmdir, "rmdir")
ONE_PATH(fs_exists, "exists")
TWO_PATHS(fs_rename, "rename")
TWO_PATHS(fs_copy, "copy")

static void fs_rmtree(const Object *fs, const char *path, uint64_t *files, uint64_t *directories,
                      TF_Status *status) {
  (void)fs;
  int code = on_path("rmtree", path, NULL, status);
  *files = 0;
  *directories = code == OK ? 0 : 1;
}

static void fs_stat(const Object *fs, const char *path, Stats *stats, TF_Status *status) {
  (void)fs;
  on_stat(path, stats, status);
}

static bool fs_is_directory(const Object *fs, const char *path, TF_Status *status) {
  (void)fs;
  Stats stats;
  if (on_stat(path, &stats, status) != OK) return false;
  /* TensorFlow's core uses only the status */
  if (!stats.is_directory) set_status(status, FAILED_PRECONDITION, "Not a directory");
  return stats.is_directory;
}

static int64_t fs_size(const Object *fs, const char *path, TF_Status *status) {
  (void)fs;
  Stats stats;
  if (on_stat(path, &stats, status) != OK) return -1;
  if (stats.is_directory) {
    set_status(status, FAILED_PRECONDITION, "Is a directory");
    return -1;
  }
  return stats.length;
}

/* scheme://authority/a//b/./../c -> scheme://authority/a/c; the function of TensorFlow's core would
 * drop the authority */
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

static void free_names(char **names, Py_ssize_t count) {
  for (Py_ssize_t i = 0; names && i < count; i++) free(names[i]);
  free(names);
}

/* Copies a list of paths; NULL with an error. */
static char **names_of(PyObject *list, Py_ssize_t count) {
  char **names = calloc((size_t)(count ? count : 1), sizeof *names);
  if (!names) return (void)PyErr_NoMemory(), NULL;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *path = PyList_GetItem(list, i), *bytes = path ? PyUnicode_EncodeFSDefault(path) : NULL;
    const char *text = bytes ? PyBytes_AsString(bytes) : NULL;
    if (text && !(names[i] = strdup(text))) PyErr_NoMemory();
    Py_XDECREF(bytes);
    if (!names[i]) {
      free_names(names, i);
      return NULL;
    }
  }
  return names;
}

static int on_list(const char *method, const char *path, char ***entries, TF_Status *status) {
  Call call;
  *entries = NULL;
  if (!enter(&call, status)) return -1;
  PyObject *result = with_paths(method, path, NULL);
  Py_ssize_t count = result ? PyList_Size(result) : -1;
  char **names = count >= 0 && count <= INT32_MAX ? names_of(result, count) : NULL;
  if (!names) Py_CLEAR(result);
  if (leave(&call, result, status) != OK) return -1;
  *entries = names;
  return (int)count;
}

static int fs_children(const Object *fs, const char *path, char ***entries, TF_Status *status) {
  (void)fs;
  return on_list("children", path, entries, status);
}

static int fs_matching(const Object *fs, const char *pattern, char ***entries, TF_Status *status) {
  char *translated = fs_translate(fs, pattern); /* TensorFlow's core passes the original pattern */
  int count = on_list("glob", translated, entries, status);
  free(translated);
  return count;
}

static void fs_flush_caches(const Object *fs) { (void)fs; } /* nothing is cached */

/* ---- exported ---- */

__attribute__((visibility("default"))) void TF_InitPlugin(PluginInfo *info) {
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

/* ---- functions of the module ---- */

/* connect_igfs(handles, told, scheme, path of TensorFlow's library): called once. TensorFlow may load
 * the plugin afterwards. */
static PyObject *connect_igfs(PyObject *self, PyObject *args) {
  PyObject *object, *teller;
  const char *scheme, *path;
  (void)self;
  if (!PyArg_ParseTuple(args, "OOss", &object, &teller, &scheme, &path)) return NULL;
  if (atomic_load(&state) != UNCONFIGURED || strlen(scheme) >= sizeof scheme_name) {
    PyErr_SetString(PyExc_ValueError, "igfs was set up before in this process");
    return NULL;
  }
  void *library = library_of(path);
  void *function = library ? function_of(library, "TF_SetStatus") : NULL;
  if (!function) return NULL;
  memcpy(&set_status, &function, sizeof set_status);
  function = dlsym(RTLD_DEFAULT, "PyGILState_Check");
  memcpy(&gil_check, &function, sizeof gil_check);
  strcpy(scheme_name, scheme);
  Py_INCREF(object);
  Py_INCREF(teller);
  handles = object;
  told = teller;
  atomic_store(&state, LIVE);
  Py_RETURN_NONE;
}

/* shut_igfs(wait_ms): called at exit. Refuses new calls and waits for running ones; returns how many
 * still run. */
static PyObject *shut_igfs(PyObject *self, PyObject *args) {
  struct timespec pause = {0, 1000000};
  int wait_ms;
  (void)self;
  if (!PyArg_ParseTuple(args, "i", &wait_ms)) return NULL;
  shutting = true;
  atomic_store(&state, SHUT);
  PyThreadState *saved = PyEval_SaveThread();
  while (wait_ms-- > 0 && atomic_load(&in_flight) > 0) nanosleep(&pause, NULL);
  PyEval_RestoreThread(saved);
  return PyLong_FromLongLong(atomic_load(&in_flight));
}

PyMethodDef igfs_methods[] = {{"connect_igfs", connect_igfs, METH_VARARGS, NULL},
                              {"shut_igfs", shut_igfs, METH_VARARGS, NULL},
                              {NULL, NULL, 0, NULL}};
