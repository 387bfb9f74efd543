/* TensorFlow op: substrings of bytes, made without the GIL.
 *
 * IgnitetfSubstr(first: uint8 [n], second: uint8 [m], starts: int64 [k], lengths: int64 [k],
 *                mode: int64 []) -> texts: string [k]
 *
 * Positions in `second` follow those of `first`; a text must not cross from one into the other.
 * Short texts are copied. Strings of some TensorFlow versions can share memory with an owner
 * (tstring::assign_as_shared_view, in ctstring_internal.h of 2.21). For these, the mode says how to
 * make long texts:
 * - SHARE_NOTHING: a copy, which is copied again with each string;
 * - SHARE_TEXT: one copy, which all copies of the string share;
 * - SHARE_PAGE: a view of the bytes, which stay in memory as long as any of their texts.
 *
 * It uses TensorFlow's C API for kernels and finds its functions in TensorFlow's library, so it needs
 * no header and no linking. A string of TensorFlow has one of three forms: up to 22 bytes inside the
 * string itself, bytes allocated by malloc, which TensorFlow frees, or a view with an owner.
 */
#include "functions.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpKernelContext Context;
typedef struct TF_KernelBuilder KernelBuilder;
typedef struct TF_OpDefinitionBuilder OpBuilder;
typedef struct TF_ShapeInferenceContext ShapeContext;
typedef struct TF_ShapeHandle ShapeHandle;

enum { OK = 0, INVALID_ARGUMENT = 3, RESOURCE_EXHAUSTED = 8 };
enum { TYPE_STRING = 7 };

/* The members have the order of `names`. */
typedef struct {
  TF_Status *(*new_status)(void);
  void (*delete_status)(TF_Status *);
  void (*set_status)(TF_Status *, int code, const char *message);
  int (*get_code)(const TF_Status *);
  OpBuilder *(*new_op)(const char *name);
  void (*add_input)(OpBuilder *, const char *);
  void (*add_output)(OpBuilder *, const char *);
  void (*set_shapes)(OpBuilder *, void (*)(ShapeContext *, TF_Status *));
  void (*register_op)(OpBuilder *, TF_Status *);
  ShapeHandle *(*new_shape)(void);
  void (*delete_shape)(ShapeHandle *);
  void (*input_shape)(ShapeContext *, int, ShapeHandle *, TF_Status *);
  void (*output_shape)(ShapeContext *, int, ShapeHandle *, TF_Status *);
  KernelBuilder *(*new_kernel)(const char *op, const char *device, void *(*create)(void *),
                               void (*compute)(void *, Context *), void (*destroy)(void *));
  void (*register_kernel)(const char *name, KernelBuilder *, TF_Status *);
  void (*input)(Context *, int, TF_Tensor **, TF_Status *);
  TF_Tensor *(*output)(Context *, int, int type, const int64_t *dims, int rank, size_t nbytes,
                       TF_Status *);
  void (*fail)(Context *, TF_Status *);
  void *(*data)(const TF_Tensor *);
  int64_t (*count)(const TF_Tensor *);
  void (*delete_tensor)(TF_Tensor *);
} Functions;

typedef struct Owner {
  void (*ref)(struct Owner *);
  bool (*unref)(struct Owner *);
  void *object;
  /* the members before this are the same as TensorFlow's */
  atomic_llong references;
  TF_Tensor *page; /* NULL if the bytes follow this struct */
} Owner;

typedef union {
  struct { uint8_t size; char bytes[23]; } small;
  struct { size_t size, capacity; char *bytes; } large;
  struct { size_t size; const char *bytes; Owner *owner; } view;
} String;

enum { SMALL_CAPACITY = 22, LARGE = 1, VIEW = 3, INPUTS = 5 };
enum { SHARE_NOTHING, SHARE_TEXT, SHARE_PAGE }; /* substr.Sharing */
/* For shorter texts, a copy costs no more than an owner. */
enum { LONG_TEXT = 1024 };

static Functions tf;

static void refer(Owner *owner) { atomic_fetch_add(&owner->references, 1); }

static bool release(Owner *owner) {
  if (atomic_fetch_sub(&owner->references, 1) != 1) return false;
  if (owner->page) tf.delete_tensor(owner->page);
  free(owner);
  return true;
}

/* Returns an owner with one reference, followed by room for `size` bytes. */
static Owner *new_owner(size_t size) {
  Owner *owner = malloc(sizeof *owner + size);
  if (!owner) return NULL;
  *owner = (Owner){refer, release, owner, 1, NULL};
  return owner;
}

/* The bytes of some texts; `owner` is created for the first view. */
typedef struct {
  TF_Tensor **tensor; /* set to NULL when the owner takes it */
  const char *data;
  int64_t size;
  Owner *owner;
} Bytes;

static bool view(String *out, const char *bytes, size_t size, Owner *owner) {
  out->view.size = size << 2 | VIEW;
  out->view.bytes = bytes;
  out->view.owner = owner;
  return true;
}

static bool share_page(String *out, Bytes *from, const char *bytes, size_t size) {
  if (!from->owner) {
    if (!(from->owner = new_owner(0))) return false;
    from->owner->page = *from->tensor;
    *from->tensor = NULL;
  }
  refer(from->owner);
  return view(out, bytes, size, from->owner);
}

static bool share_text(String *out, const char *bytes, size_t size) {
  Owner *owner = new_owner(size + 1);
  if (!owner) return false;
  char *copy = memcpy(owner + 1, bytes, size);
  copy[size] = 0;
  return view(out, copy, size, owner);
}

static bool assign(String *out, Bytes *from, int64_t start, size_t size, int64_t mode) {
  const char *bytes = from->data + start;
  if (size <= SMALL_CAPACITY) {
    out->small.size = (uint8_t)(size << 2);
    memcpy(out->small.bytes, bytes, size);
    out->small.bytes[size] = 0;
    return true;
  }
  if (size >= LONG_TEXT && mode == SHARE_PAGE) return share_page(out, from, bytes, size);
  if (size >= LONG_TEXT && mode == SHARE_TEXT) return share_text(out, bytes, size);
  size_t capacity = ((size + 1 + 15) & ~(size_t)15) - 1;
  char *copy = malloc(capacity + 1);
  if (!copy) return false;
  memcpy(copy, bytes, size);
  copy[size] = 0;
  out->large.size = size << 2 | LARGE;
  out->large.capacity = capacity;
  out->large.bytes = copy;
  return true;
}

/* Whether a text lies within the bytes. */
static bool within(const Bytes *from, int64_t start, int64_t length) {
  return start >= 0 && length >= 0 && start <= from->size && length <= from->size - start;
}

static void substr(TF_Tensor **in, Context *context, TF_Status *status) {
  int64_t count = tf.count(in[2]);
  if (tf.count(in[3]) != count || tf.count(in[4]) != 1) {
    tf.set_status(status, INVALID_ARGUMENT, "starts and lengths differ in number");
    return;
  }
  int64_t mode = *(int64_t *)tf.data(in[4]);
  Bytes from[2];
  for (int i = 0; i < 2; i++) from[i] = (Bytes){in + i, tf.data(in[i]), tf.count(in[i]), NULL};
  const int64_t *start = tf.data(in[2]), *length = tf.data(in[3]);
  int64_t border = from[0].size;
  for (int64_t i = 0; i < count; i++)
    if (!within(from, start[i], length[i]) &&
        (start[i] < border || !within(from + 1, start[i] - border, length[i]))) {
      tf.set_status(status, INVALID_ARGUMENT, "a text reaches beyond its page");
      return;
    }
  TF_Tensor *texts =
      tf.output(context, 0, TYPE_STRING, &count, 1, (size_t)count * sizeof(String), status);
  if (tf.get_code(status) != OK) return;
  String *out = tf.data(texts);
  for (int64_t i = 0; i < count; i++) {
    bool second = !within(from, start[i], length[i]);
    int64_t at = start[i] - (second ? border : 0);
    if (!assign(out + i, from + second, at, (size_t)length[i], mode)) {
      tf.set_status(status, RESOURCE_EXHAUSTED, "no memory for the texts of a page");
      break;
    }
  }
  for (int i = 0; i < 2; i++)
    if (from[i].owner) release(from[i].owner);
  tf.delete_tensor(texts);
}

static void compute(void *kernel, Context *context) {
  (void)kernel;
  TF_Tensor *in[INPUTS] = {0};
  TF_Status *status = tf.new_status();
  for (int i = 0; i < INPUTS && tf.get_code(status) == OK; i++) tf.input(context, i, in + i, status);
  if (tf.get_code(status) == OK) substr(in, context, status);
  if (tf.get_code(status) != OK) tf.fail(context, status);
  for (int i = 0; i < INPUTS; i++)
    if (in[i]) tf.delete_tensor(in[i]);
  tf.delete_status(status);
}

static void shapes(ShapeContext *context, TF_Status *status) {
  ShapeHandle *shape = tf.new_shape();
  tf.input_shape(context, 2, shape, status);
  if (tf.get_code(status) == OK) tf.output_shape(context, 0, shape, status);
  tf.delete_shape(shape);
}

static const char *const names[] = {"TF_NewStatus",
                                    "TF_DeleteStatus",
                                    "TF_SetStatus",
                                    "TF_GetCode",
                                    "TF_NewOpDefinitionBuilder",
                                    "TF_OpDefinitionBuilderAddInput",
                                    "TF_OpDefinitionBuilderAddOutput",
                                    "TF_OpDefinitionBuilderSetShapeInferenceFunction",
                                    "TF_RegisterOpDefinition",
                                    "TF_NewShapeHandle",
                                    "TF_DeleteShapeHandle",
                                    "TF_ShapeInferenceContextGetInput",
                                    "TF_ShapeInferenceContextSetOutput",
                                    "TF_NewKernelBuilder",
                                    "TF_RegisterKernelBuilder",
                                    "TF_GetInput",
                                    "TF_AllocateOutput",
                                    "TF_OpKernelContext_Failure",
                                    "TF_TensorData",
                                    "TF_TensorElementCount",
                                    "TF_DeleteTensor"};
enum { NAMES = sizeof names / sizeof *names };
_Static_assert(sizeof(Functions) == NAMES * sizeof(void *), "each function has a name");

/* Returns TensorFlow's code of an error, or 0. */
static int register_op(void) {
  static const char *const inputs[INPUTS] = {
      "first: uint8", "second: uint8", "starts: int64", "lengths: int64", "mode: int64"};
  TF_Status *status = tf.new_status();
  OpBuilder *op = tf.new_op("IgnitetfSubstr");
  for (int i = 0; i < INPUTS; i++) tf.add_input(op, inputs[i]);
  tf.add_output(op, "texts: string");
  tf.set_shapes(op, shapes);
  tf.register_op(op, status);
  if (tf.get_code(status) == OK)
    tf.register_kernel("IgnitetfSubstr", tf.new_kernel("IgnitetfSubstr", "CPU", NULL, compute, NULL),
                       status);
  int code = tf.get_code(status);
  tf.delete_status(status);
  return code;
}

/* register_strings(path): registers the op with TensorFlow, whose library is at the path.
 *
 * It registers only once, because TensorFlow aborts the process the second time. Returns TensorFlow's
 * error code or 0; later calls return the same. The GIL keeps out a second thread. */
static PyObject *register_strings(PyObject *self, PyObject *args) {
  static int code = -1;
  const char *path;
  (void)self;
  if (!PyArg_ParseTuple(args, "s", &path)) return NULL;
  if (code < 0) {
    void *library = library_of(path), *found[NAMES];
    for (int i = 0; library && i < NAMES; i++)
      if (!(found[i] = function_of(library, names[i]))) library = NULL;
    if (!library) return NULL;
    memcpy(&tf, found, sizeof tf);
    code = register_op();
  }
  return PyLong_FromLongLong(code);
}

PyMethodDef strings_methods[] = {{"register_strings", register_strings, METH_VARARGS, NULL},
                                 {NULL, NULL, 0, NULL}};
