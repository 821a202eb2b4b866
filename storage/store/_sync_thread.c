/* A thread that syncs files and never asks for the interpreter lock.
 *
 * One sync at a time: `begin` hands over two descriptors, as of the log and of the marker, or -1 for either; the thread
 * calls fdatasync on each in that order, closes the first, which is its own, and adds 1 to an eventfd. A folder's names
 * need fsync, and get it. The loop waits for the eventfd
 * as for a socket, and `end` returns errno of the sync that failed, 0 if none did, and how long both took. `begin` waits
 * a moment for that itself if asked to: on a fast disk the news then needs no wake-up of the loop. A worker thread of
 * Python would want the interpreter lock before and after each sync while the loop computes.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (256 * 1024)

typedef struct {
  PyObject_HEAD
  pthread_t thread;
  int runs;  /* the thread was started and not joined */
  int event; /* descriptor */
  sem_t asked;
  int busy;              /* a sync was begun and its end not taken; used with the interpreter lock only */
  int log, marker, ends; /* what is asked: written before the semaphore is raised, read after it is taken */
  int failed;            /* errno; likewise, by the eventfd */
  double took_s;
} SyncThread;

static double now_s(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static int synced(int descriptor) { /* an interrupted sync was none: Python's own tries again as well */
  struct stat status;
  int rc;
  if (descriptor < 0) return 0;
  if (fstat(descriptor, &status) != 0) return errno;
  do rc = S_ISDIR(status.st_mode) ? fsync(descriptor) : fdatasync(descriptor);
  while (rc != 0 && errno == EINTR);
  return rc == 0 ? 0 : errno;
}

static void *serve(void *argument) {
  SyncThread *self = argument;
  const uint64_t one = 1;
  for (;;) {
    double begun;
    while (sem_wait(&self->asked) != 0) continue;
    if (self->ends) return NULL;
    begun = now_s();
    self->failed = synced(self->log);
    if (!self->failed) self->failed = synced(self->marker);
    if (self->log >= 0) close(self->log);
    self->took_s = now_s() - begun;
    while (write(self->event, &one, sizeof one) < 0 && errno == EINTR) continue;
  }
}

static void stop(SyncThread *self) {
  if (self->runs) {
    self->runs = 0;
    self->ends = 1;
    Py_BEGIN_ALLOW_THREADS
    sem_post(&self->asked);
    pthread_join(self->thread, NULL); /* behind a sync that runs */
    Py_END_ALLOW_THREADS
    sem_destroy(&self->asked);
  }
  if (self->event >= 0) close(self->event);
  self->event = -1;
}

static PyObject *sync_thread_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
  SyncThread *self;
  pthread_attr_t attributes;
  sigset_t all, before;
  int rc;
  if (!PyArg_ParseTuple(arguments, "") || (names && PyDict_GET_SIZE(names))) return NULL;
  if (!(self = (SyncThread *)type->tp_alloc(type, 0))) return NULL;
  self->log = self->marker = -1;
  self->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (self->event < 0 || sem_init(&self->asked, 0, 0) != 0) {
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(self);
    return NULL;
  }
  sigfillset(&all); /* signals are for the interpreter's main thread */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  rc = pthread_create(&self->thread, &attributes, serve, self);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (rc != 0) {
    errno = rc;
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(self);
    return NULL;
  }
  self->runs = 1;
  return (PyObject *)self;
}

static void sync_thread_dealloc(SyncThread *self) {
  stop(self);
  Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *sync_thread_end(SyncThread *self, PyObject *none) {
  uint64_t ended;
  (void)none;
  if (!self->busy || read(self->event, &ended, sizeof ended) != sizeof ended) Py_RETURN_NONE;
  self->busy = 0;
  return Py_BuildValue("id", self->failed, self->took_s);
}

static PyObject *sync_thread_begin(SyncThread *self, PyObject *arguments) {
  int log, marker, wait_us;
  if (!PyArg_ParseTuple(arguments, "iii", &log, &marker, &wait_us)) return NULL;
  if (!self->runs || self->busy) {
    PyErr_SetString(PyExc_RuntimeError, self->runs ? "a sync is under way" : "the thread has ended");
    return NULL;
  }
  self->busy = 1;
  self->log = log;
  self->marker = marker;
  sem_post(&self->asked);
  if (wait_us > 0) {
    struct pollfd ends = {self->event, POLLIN, 0};
    struct timespec most = {wait_us / 1000000, wait_us % 1000000 * 1000L};
    Py_BEGIN_ALLOW_THREADS
    (void)ppoll(&ends, 1, &most, NULL); /* a signal ends the wait: the loop hears of the sync as of a slow one */
    Py_END_ALLOW_THREADS
  }
  return sync_thread_end(self, NULL);
}

static PyObject *sync_thread_fileno(SyncThread *self, PyObject *none) {
  (void)none;
  return PyLong_FromLong(self->event);
}

static PyObject *sync_thread_close(SyncThread *self, PyObject *none) {
  (void)none;
  stop(self);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"begin", (PyCFunction)sync_thread_begin, METH_VARARGS,
     "Begin a sync of two descriptors, each -1 for none; wait so many us for its end, and return what end() returns."},
    {"end", (PyCFunction)sync_thread_end, METH_NOARGS, "Return (errno, seconds) of the sync that ended, else None."},
    {"fileno", (PyCFunction)sync_thread_fileno, METH_NOARGS, "Return the descriptor that is readable at an end."},
    {"close", (PyCFunction)sync_thread_close, METH_NOARGS, "Wait for a sync that runs; end the thread."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject sync_thread_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "storage.store._sync_thread.SyncThread",
    .tp_basicsize = sizeof(SyncThread),
    .tp_dealloc = (destructor)sync_thread_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A thread that syncs, without the interpreter lock.",
    .tp_methods = methods,
    .tp_new = sync_thread_new,
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_sync_thread", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sync_thread(void) {
  PyObject *made;
  if (PyType_Ready(&sync_thread_type) < 0 || !(made = PyModule_Create(&module))) return NULL;
  Py_INCREF(&sync_thread_type);
  if (PyModule_AddObject(made, "SyncThread", (PyObject *)&sync_thread_type) < 0) {
    Py_DECREF(made);
    return NULL;
  }
  return made;
}
