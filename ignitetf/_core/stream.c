/* The bytes of one connection: receiving and sending. */
#include "lane.h"

#include <errno.h>
#include <sys/socket.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* Python ignores SIGPIPE anyway */
#endif

enum {
  WHOLE_BYTES = 64 << 10,   /* from this size of an answer on, a call waits for all of its bytes */
  MOST_AT_ONCE = 8 << 20,   /* most bytes of one call, so that its time limit measures progress */
  LEAST_PROGRESS = 64 << 10, /* fewer bytes than this within the time limit do not count */
  SKIPPED_BYTES = 128 << 10 /* skipped at a time */
};

static int64_t receive_by_python(Lane *lane, uint8_t *to, int64_t room) {
  int64_t got = -1;
  PyEval_RestoreThread(lane->state);
  PyObject *view = PyMemoryView_FromMemory((char *)to, room, PyBUF_WRITE);
  PyObject *found = view ? PyObject_CallFunctionObjArgs(lane->receive, view, NULL) : NULL;
  if (found) {
    got = PyLong_AsLongLong(found);
    Py_DECREF(found);
  }
  Py_XDECREF(view);
  lane->state = PyEval_SaveThread();
  return got;
}

/* Whether a signal such as Ctrl-C has raised an exception; only in the main thread. */
static int was_interrupted(Lane *lane) {
  PyEval_RestoreThread(lane->state);
  int raised = PyErr_CheckSignals();
  lane->state = PyEval_SaveThread();
  return raised;
}

/* Receives some bytes, at most `room`. With `all`, it fills `room` unless the connection ends. */
static int receive(Lane *lane, uint8_t *to, int64_t room, int all, int64_t *got) {
  lane->calls++;
  if (room > MOST_AT_ONCE) room = MOST_AT_ONCE;
  int64_t before = now_ns(), count;
  if (lane->fd < 0) {
    count = receive_by_python(lane, to, room);
    if (count < 0) return RAISED;
  } else {
    do
      count = recv(lane->fd, to, (size_t)room, all ? MSG_WAITALL : 0);
    while (count < 0 && errno == EINTR && !lane->landing->stopped && !was_interrupted(lane));
    if (count < 0 && errno == EINTR && !lane->landing->stopped) return RAISED;
    if (all && count > 0 && count < room && was_interrupted(lane)) return RAISED;
  }
  int64_t now = now_ns();
  lane->waited_ns += now - before;
  if (count <= 0) {
    lane->a = count ? errno : 0;
    return lane->landing->stopped ? STOPPED : LOST;
  }
  lane->progress += count;
  if (lane->progress >= LEAST_PROGRESS || now - lane->since < lane->limit_ns) {
    if (lane->progress >= LEAST_PROGRESS) {
      lane->since = now;
      lane->progress = 0;
    }
  } else if (all || count < room) {
    lane->a = EAGAIN;
    return LOST;
  }
  *got = count;
  return GOES_ON;
}

/* Receives until the buffer has `size` consecutive bytes. */
int fetch(Lane *lane, int64_t size) {
  if (lane->from_stash) return damaged(lane, "an answer is cut");
  if (lane->begin == lane->end) lane->begin = lane->end = 0;
  if (lane->begin + size > lane->room) {
    memmove(lane->buffer, lane->buffer + lane->begin, (size_t)(lane->end - lane->begin));
    lane->end -= lane->begin;
    lane->begin = 0;
  }
  if (size > lane->room) {
    uint8_t *larger = realloc(lane->buffer, (size_t)size);
    if (!larger) return NO_MEMORY;
    lane->buffer = larger;
    lane->room = size;
  }
  while (lane->end - lane->begin < size) {
    int64_t coming = lane->left - (lane->end - lane->begin), room = lane->room - lane->end, got;
    int all = coming >= WHOLE_BYTES;
    if (all && room > coming) room = coming;
    int found = receive(lane, lane->buffer + lane->end, room, all, &got);
    if (found != GOES_ON) return found;
    lane->end += got;
  }
  return GOES_ON;
}

/* Moves the next bytes of the answer to their place. */
int pull(Lane *lane, uint8_t *to, int64_t size) {
  if (size > lane->left) return damaged(lane, "an answer is shorter than what it holds");
  int64_t have = lane->end - lane->begin;
  if (have > size) have = size;
  memcpy(to, here(lane), (size_t)have);
  consume(lane, have);
  to += have;
  size -= have;
  if (size && lane->from_stash) return damaged(lane, "an answer is cut");
  while (size) {
    int64_t got;
    int found = receive(lane, to, size, 1, &got);
    if (found != GOES_ON) return found;
    lane->left -= got;
    to += got;
    size -= got;
  }
  return GOES_ON;
}

int skip(Lane *lane, int64_t size) {
  while (size) {
    int64_t piece = size < SKIPPED_BYTES ? size : SKIPPED_BYTES;
    int found = need_here(lane, piece);
    if (found != GOES_ON) return found;
    consume(lane, piece);
    size -= piece;
  }
  return GOES_ON;
}

/* To the node */

int flush(Lane *lane) {
  uint8_t *from = lane->out;
  int64_t size = lane->out_size;
  lane->out_size = 0;
  if (!size) return GOES_ON;
  if (lane->fd < 0) {
    PyEval_RestoreThread(lane->state);
    PyObject *sent = PyObject_CallFunction(lane->send, "y#", (char *)from, (Py_ssize_t)size);
    int raised = !sent;
    Py_XDECREF(sent);
    lane->state = PyEval_SaveThread();
    return raised ? RAISED : GOES_ON;
  }
  while (size) {
    ssize_t sent = send(lane->fd, from, (size_t)size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR && !lane->landing->stopped) {
      if (was_interrupted(lane)) return RAISED;
      continue;
    }
    if (sent < 0) {
      lane->a = errno;
      return lane->landing->stopped ? STOPPED : LOST;
    }
    from += sent;
    size -= sent;
  }
  return GOES_ON;
}

int put_out(Lane *lane, const void *bytes, int64_t size) {
  if (lane->out_size + size > lane->out_room) {
    int64_t room = 2 * (lane->out_size + size);
    uint8_t *larger = realloc(lane->out, (size_t)room);
    if (!larger) return NO_MEMORY;
    lane->out = larger;
    lane->out_room = room;
  }
  memcpy(lane->out + lane->out_size, bytes, (size_t)size);
  lane->out_size += size;
  return GOES_ON;
}
