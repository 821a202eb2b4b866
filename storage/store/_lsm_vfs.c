/* File calls of lsm-db, with what the library leaves out: page sums, and writes that are whole or fail.
 *
 * The library keeps its file calls in a table of function pointers (lsm_env). `install` replaces those for open, read,
 * write, sync and close in the table that every database of the process uses. For a data file that was attached, each
 * page has a sum: set when the page is written, checked when it is read (a mismatch is LSM_CORRUPT), and made durable
 * before the header that refers to the page, in a journal beside the data file (storage/store/page_sums.py reads it back).
 * Pages are given to the disk as they are written, so that the sync of a checkpoint finds little left to write.
 * A checkpoint may be synced elsewhere: `begin` hands out the journal with the sums of all pages so far; once that and
 * the data file were synced, the library's own syncs are left out while `defer` says so and no page was written since
 * (storage/store/checkpoints.py has the order).
 * For all files, a short write is continued, and is LSM_FULL when the disk takes no more: the library itself takes a
 * short write for a whole one and acknowledges a torn transaction.
 *
 * Everything runs inside calls of the library, which hold the interpreter lock; no Python is called from here. The
 * first two pages are the library's headers, which carry sums of their own. Sums are of this machine's byte order.
 */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE_BYTES 4096
#define HAND_OVER_BYTES (256L << 10)
#define HEADER_PAGES 2
#define FILES_MAX 64
#define RECORD_MAGIC 0x534d5153u     /* storage/store/page_sums.py knows these two as well */
#define JOURNAL_MAGIC "SMQsums1"
#define DAMAGED_MAGIC "SMQdamag" /* of as many bytes */

enum { LSM_OK = 0, LSM_NOMEM = 7, LSM_IOERR = 10, LSM_CORRUPT = 11, LSM_FULL = 13 };

typedef struct lsm_env lsm_env;
typedef struct {
  lsm_env *env;
  const char *name;
  int fd;
} lsm_file; /* the head of lsm_unix.c's PosixFile, of the one version this is used with */

struct lsm_env { /* the head of lsm.h's lsm_env, version 1 */
  int bytes, version;
  void *context;
  int (*xFullpath)(lsm_env *, const char *, char *, int *);
  int (*xOpen)(lsm_env *, const char *, int, lsm_file **);
  int (*xRead)(lsm_file *, long long, void *, int);
  int (*xWrite)(lsm_file *, long long, void *, int);
  int (*xTruncate)(lsm_file *, long long);
  int (*xSync)(lsm_file *);
  int (*xSectorSize)(lsm_file *);
  int (*xRemap)(lsm_file *, long long, void **, long long *);
  int (*xFileid)(lsm_file *, void *, int *);
  int (*xClose)(lsm_file *);
};

typedef struct Sums {
  struct Sums *next;
  char *path;      /* of the data file, as the library names it */
  int journal;     /* descriptor */
  long long at;    /* bytes in the journal */
  long long most;  /* bytes beyond twice what its sums need; then it is rewritten */
  uint32_t *sums;  /* by page number; 0 is unknown */
  uint32_t pages;  /* allocated */
  uint32_t *dirty; /* pages whose sums are not in the journal; may name a page twice */
  uint32_t dirty_count, dirty_allocated;
  int side;          /* descriptor of the journal that is to take this one's place, -1 if there is none */
  long long side_at; /* bytes in that */
  int unsynced;      /* the journal has a record that was not synced */
  int begun;         /* no page was written since `begin` */
  int deferring;     /* the library's syncs of what `begin` handed out are left out */
  int files;         /* of the library that are open on it */
  int detached;      /* freed with the last of them */
  long long written_from, written_to; /* a run of pages that the disk was not given yet */
  int sync_failed;   /* errno of a sync that failed, 0 if none did */
  long long corrupt; /* first page that failed its check, -1 if none did */
} Sums;

static lsm_env real;
static Sums *attached;
static int damages; /* data files of this process of which a page failed its check */
static struct {
  lsm_file *file;
  Sums *sums;
} files[FILES_MAX];

static Sums *sums_of(const lsm_file *file) {
  for (int i = 0; i < FILES_MAX; i++)
    if (files[i].file == file) return files[i].sums;
  return NULL;
}

static void free_sums(Sums *sums) {
  for (Sums **link = &attached; *link; link = &(*link)->next)
    if (*link == sums) {
      *link = sums->next;
      break;
    }
  close(sums->journal);
  if (sums->side >= 0) close(sums->side);
  free(sums->path);
  free(sums->sums);
  free(sums->dirty);
  free(sums);
}

static uint64_t rotated(uint64_t x) { return x << 29 | x >> 35; }

/* Each step is a bijection of the lane for a given word and of the word for a given lane: one changed word always
 * changes its lane, and one changed lane always changes the 64-bit sum; folding to 32 bits misses 1 in 2^32. */
static uint32_t page_sum(uint32_t page, const void *data) {
  const uint64_t k = 0x9e3779b97f4a7c15ULL;
  uint64_t lanes[4] = {k, k ^ page, ~k, k * 3}, words[4], sum = page;
  uint32_t folded;
  for (int at = 0; at < PAGE_BYTES; at += 32) {
    memcpy(words, (const char *)data + at, 32);
    for (int i = 0; i < 4; i++) lanes[i] = rotated((lanes[i] ^ words[i]) * k);
  }
  for (int i = 0; i < 4; i++) sum = rotated((sum ^ lanes[i]) * k);
  sum ^= sum >> 32;
  folded = (uint32_t)(sum * k >> 32);
  return folded ? folded : 1;
}

static int write_all(int fd, const void *data, size_t n, long long at) {
  const char *from = data;
  while (n > 0) {
    ssize_t done = pwrite(fd, from, n, at);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return done == 0 || errno == ENOSPC || errno == EDQUOT ? LSM_FULL : LSM_IOERR;
    from += done;
    at += done;
    n -= (size_t)done;
  }
  return LSM_OK;
}

static int note_page(Sums *sums, uint32_t page, uint32_t sum) {
  if (page >= sums->pages) {
    uint32_t pages = page + page / 2 + 1024;
    uint32_t *grown = realloc(sums->sums, (size_t)pages * sizeof *grown);
    if (!grown) return LSM_NOMEM;
    memset(grown + sums->pages, 0, (size_t)(pages - sums->pages) * sizeof *grown);
    sums->sums = grown;
    sums->pages = pages;
  }
  if (sums->dirty_count == sums->dirty_allocated) {
    uint32_t count = sums->dirty_allocated * 2 + 1024;
    uint32_t *grown = realloc(sums->dirty, (size_t)count * sizeof *grown);
    if (!grown) return LSM_NOMEM;
    sums->dirty = grown;
    sums->dirty_allocated = count;
  }
  sums->sums[page] = sum;
  sums->dirty[sums->dirty_count++] = page;
  return LSM_OK;
}

static uint64_t entries_sum(const uint32_t *entries, size_t words) { /* FNV-1a, by words */
  uint64_t check = 0xcbf29ce484222325ULL;
  for (size_t i = 0; i < words; i++) check = (check ^ entries[i]) * 0x100000001b3ULL;
  return check;
}

/* Write one record: magic, count, sum of the entries, then pairs of page and sum. The pages are those listed, or all. */
static int write_record(Sums *sums, int fd, const uint32_t *pages, uint32_t count, long long *at) {
  uint32_t *record = malloc(16 + (size_t)count * 8);
  uint64_t check;
  int rc;
  if (!record) return LSM_NOMEM;
  record[0] = RECORD_MAGIC;
  record[1] = count;
  for (uint32_t i = 0; i < count; i++) {
    record[4 + 2 * i] = pages ? pages[i] : i;
    record[5 + 2 * i] = sums->sums[record[4 + 2 * i]];
  }
  check = entries_sum(record + 4, (size_t)count * 2);
  memcpy(record + 2, &check, 8);
  rc = write_all(fd, record, 16 + (size_t)count * 8, *at);
  free(record);
  if (rc == LSM_OK) *at += 16 + (long long)count * 8;
  return rc;
}

static int synced(Sums *sums, int fd) {
  if (fdatasync(fd) == 0) return LSM_OK;
  sums->sync_failed = errno;
  return LSM_IOERR;
}

static int sync_folder(const char *path) {
  char folder[PATH_MAX];
  int fd, rc;
  snprintf(folder, sizeof folder, "%s", path);
  *strrchr(folder, '/') = 0; /* paths are absolute */
  fd = open(folder[0] ? folder : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -1;
  rc = fsync(fd);
  close(fd);
  return rc;
}

static void drop_side(Sums *sums) {
  if (sums->side >= 0) close(sums->side);
  sums->side = -1;
}

static int journal_names(const Sums *sums, char journal[PATH_MAX], char side[PATH_MAX + 8]) {
  if (snprintf(journal, PATH_MAX, "%s-sums", sums->path) >= PATH_MAX) return LSM_IOERR;
  snprintf(side, PATH_MAX + 8, "%s.new", journal);
  return LSM_OK;
}

/* Write one record of all sums aside, not synced. */
static int write_side(Sums *sums) {
  char journal[PATH_MAX], side[PATH_MAX + 8];
  int rc;
  drop_side(sums);
  if (journal_names(sums, journal, side) != LSM_OK) return LSM_IOERR;
  sums->side = open(side, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (sums->side < 0) return LSM_IOERR;
  sums->side_at = strlen(JOURNAL_MAGIC);
  rc = write_all(sums->side, JOURNAL_MAGIC, strlen(JOURNAL_MAGIC), 0);
  if (rc == LSM_OK) rc = write_record(sums, sums->side, NULL, sums->pages, &sums->side_at);
  if (rc != LSM_OK) drop_side(sums);
  return rc;
}

/* Let what was written aside, and synced, be the journal; the folder is not synced. */
static int take_side(Sums *sums) {
  char journal[PATH_MAX], side[PATH_MAX + 8];
  if (journal_names(sums, journal, side) != LSM_OK || rename(side, journal) != 0) return LSM_IOERR;
  close(sums->journal);
  sums->journal = sums->side;
  sums->at = sums->side_at;
  sums->side = -1;
  return LSM_OK;
}

static int is_journal_long(const Sums *sums) {
  return sums->at > sums->most + 16LL * sums->pages && sums->corrupt < 0;
}

static int flush_journal(Sums *sums) {
  int rc;
  if (sums->dirty_count == 0 && !sums->unsynced) return LSM_OK;
  if (is_journal_long(sums)) {
    rc = write_side(sums);
    if (rc == LSM_OK) rc = synced(sums, sums->side);
    if (rc == LSM_OK) rc = take_side(sums);
    if (rc == LSM_OK && sync_folder(sums->path) != 0) rc = LSM_IOERR;
  } else {
    rc = sums->dirty_count ? write_record(sums, sums->journal, sums->dirty, sums->dirty_count, &sums->at) : LSM_OK;
    if (rc == LSM_OK) rc = synced(sums, sums->journal);
  }
  if (rc == LSM_OK) sums->dirty_count = sums->unsynced = 0;
  return rc;
}

static int vfs_open(lsm_env *env, const char *name, int flags, lsm_file **out) {
  int rc = real.xOpen(env, name, flags, out);
  if (rc != LSM_OK || !*out) return rc;
  for (Sums *sums = attached; sums; sums = sums->next) {
    if (sums->detached || strcmp(sums->path, name) != 0) continue;
    for (int i = 0; i < FILES_MAX; i++)
      if (!files[i].file) {
        files[i].file = *out;
        files[i].sums = sums;
        sums->files++;
        return LSM_OK;
      }
    real.xClose(*out); /* more open files than FILES_MAX: refuse rather than leave pages unchecked */
    *out = NULL;
    return LSM_NOMEM;
  }
  return LSM_OK;
}

/* Say in the journal, durably, that the data file is damaged: the library forgets an error of a read now and then, and
 * crashes some calls later, having released a page that it still lists. Nothing needs to come of a failure here. */
static void note_damage(Sums *sums, long long page) {
  if (sums->corrupt >= 0) return;
  sums->corrupt = page;
  damages++;
  if (write_all(sums->journal, DAMAGED_MAGIC, strlen(DAMAGED_MAGIC), 0) == LSM_OK) (void)!fdatasync(sums->journal);
}

static int vfs_read(lsm_file *file, long long at, void *data, int n) {
  Sums *sums = sums_of(file);
  int rc = real.xRead(file, at, data, n);
  if (rc != LSM_OK || !sums || at % PAGE_BYTES || n % PAGE_BYTES) return rc;
  for (int done = 0; done < n; done += PAGE_BYTES) {
    long long page = (at + done) / PAGE_BYTES;
    if (page < HEADER_PAGES || page >= sums->pages || sums->sums[page] == 0) continue;
    if (sums->sums[page] == page_sum((uint32_t)page, (char *)data + done)) continue;
    note_damage(sums, page);
    return LSM_CORRUPT;
  }
  return LSM_OK;
}

static void hand_over(Sums *sums, int fd) {
#ifdef SYNC_FILE_RANGE_WRITE
  /* Only begins to write. An error is none of ours: the file's next sync reports it. */
  if (sums->written_to > sums->written_from)
    sync_file_range(fd, sums->written_from, sums->written_to - sums->written_from, SYNC_FILE_RANGE_WRITE);
#endif
  sums->written_from = sums->written_to;
}

static int vfs_write(lsm_file *file, long long at, void *data, int n) {
  Sums *sums = sums_of(file);
  int rc = write_all(file->fd, data, (size_t)n, at);
  if (rc != LSM_OK || !sums) return rc;
  if (at != sums->written_to) {
    hand_over(sums, file->fd);
    sums->written_from = at;
  }
  sums->written_to = at + n;
  if (sums->written_to - sums->written_from >= HAND_OVER_BYTES) hand_over(sums, file->fd);
  for (long long page = at / PAGE_BYTES; page * PAGE_BYTES < at + n && rc == LSM_OK; page++) {
    long long from = page * PAGE_BYTES;
    if (page < HEADER_PAGES) continue;
    sums->begun = 0;
    if (from >= at && from + PAGE_BYTES <= at + n)
      rc = note_page(sums, (uint32_t)page, page_sum((uint32_t)page, (char *)data + (from - at)));
    else
      rc = note_page(sums, (uint32_t)page, 0); /* a part of a page: does not happen without compression */
  }
  return rc;
}

static int vfs_sync(lsm_file *file) {
  Sums *sums = sums_of(file);
  int rc;
  if (sums && sums->deferring && sums->begun) return LSM_OK;
  if (sums && (rc = flush_journal(sums)) != LSM_OK) return rc;
  errno = 0;
  rc = real.xSync(file);
  if (rc != LSM_OK && sums) sums->sync_failed = errno ? errno : EIO;
  return rc;
}

static int vfs_close(lsm_file *file) {
  for (int i = 0; i < FILES_MAX; i++)
    if (file && files[i].file == file) {
      Sums *sums = files[i].sums;
      files[i].file = NULL;
      if (--sums->files == 0 && sums->detached) free_sums(sums);
    }
  return real.xClose(file);
}

static PyObject *install(PyObject *self, PyObject *arguments) {
  const char *library;
  lsm_env *(*default_env)(void);
  lsm_env *env;
  void *handle;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "s", &library)) return NULL;
  if (real.xOpen) Py_RETURN_NONE;
  handle = dlopen(library, RTLD_NOW);
  default_env = handle ? (lsm_env * (*)(void)) dlsym(handle, "lsm_default_env") : NULL;
  if (!default_env || (env = default_env())->version != 1) {
    PyErr_SetString(PyExc_RuntimeError, "lsm-db does not offer its file calls");
    return NULL;
  }
  real = *env;
  env->xOpen = vfs_open;
  env->xRead = vfs_read;
  env->xWrite = vfs_write;
  env->xSync = vfs_sync;
  env->xClose = vfs_close;
  Py_RETURN_NONE;
}

static PyObject *attach(PyObject *self, PyObject *arguments) {
  const char *path, *known;
  Py_ssize_t known_bytes;
  long long at, most;
  int journal;
  Sums *sums;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "siLy#L", &path, &journal, &at, &known, &known_bytes, &most)) return NULL;
  sums = calloc(1, sizeof *sums);
  if (!sums) return PyErr_NoMemory();
  sums->pages = (uint32_t)(known_bytes / 4) + 1024;
  sums->sums = calloc(sums->pages, sizeof *sums->sums);
  sums->path = strdup(path);
  sums->journal = journal; /* ours from here on */
  sums->at = at;
  sums->most = most;
  sums->corrupt = sums->side = -1;
  if (!sums->sums || !sums->path) return PyErr_NoMemory();
  memcpy(sums->sums, known, (size_t)known_bytes / 4 * 4);
  sums->next = attached;
  attached = sums;
  Py_RETURN_NONE;
}

static Sums *find(const char *path) {
  for (Sums *sums = attached; sums; sums = sums->next)
    if (!sums->detached && strcmp(sums->path, path) == 0) return sums;
  return NULL;
}

static PyObject *detach(PyObject *self, PyObject *arguments) {
  const char *path;
  Sums *sums;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "s", &path)) return NULL;
  if ((sums = find(path)) != NULL) {
    sums->detached = 1;
    for (int i = 0; i < FILES_MAX && sums->corrupt >= 0; i++) /* the library is not called again for these */
      if (files[i].file && files[i].sums == sums) {
        files[i].file = NULL;
        sums->files--;
      }
    if (sums->files == 0) free_sums(sums);
  }
  Py_RETURN_NONE;
}

static PyObject *status(PyObject *self, PyObject *arguments) {
  const char *path;
  Sums *sums;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "s", &path)) return NULL;
  if (!(sums = find(path))) Py_RETURN_NONE;
  return Py_BuildValue("iLL", sums->sync_failed, sums->corrupt, sums->at);
}

static PyObject *unsynced(PyObject *self, PyObject *arguments) {
  const char *path;
  Sums *sums;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "s", &path)) return NULL;
  sums = find(path);
  return PyLong_FromUnsignedLong(sums ? sums->dirty_count : 0);
}

static Sums *required(PyObject *arguments) {
  const char *path;
  Sums *sums;
  if (!PyArg_ParseTuple(arguments, "s", &path)) return NULL;
  if (!(sums = find(path))) PyErr_SetString(PyExc_RuntimeError, "the data file is not attached");
  return sums;
}

static PyObject *begin(PyObject *self, PyObject *arguments) {
  Sums *sums = required(arguments);
  int rc = LSM_OK;
  (void)self;
  if (!sums) return NULL;
  drop_side(sums);
  errno = 0;
  /* Both: the journal as it is serves the next header until the one aside has its name, durably. */
  if (is_journal_long(sums)) rc = write_side(sums);
  if (rc == LSM_OK && sums->dirty_count) {
    rc = write_record(sums, sums->journal, sums->dirty, sums->dirty_count, &sums->at);
    sums->unsynced = 1;
  }
  if (rc != LSM_OK) {
    if (!errno) errno = EIO;
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  sums->dirty_count = 0;
  sums->begun = 1;
  return Py_BuildValue("ii", sums->journal, sums->side);
}

static PyObject *replace(PyObject *self, PyObject *arguments) {
  Sums *sums = required(arguments);
  (void)self;
  if (!sums) return NULL;
  if (!sums->begun || sums->side < 0) Py_RETURN_FALSE;
  errno = 0;
  if (take_side(sums) != LSM_OK) {
    if (!errno) errno = EIO;
    return PyErr_SetFromErrno(PyExc_OSError);
  }
  Py_RETURN_TRUE;
}

static PyObject *defer(PyObject *self, PyObject *arguments) {
  const char *path;
  int on;
  Sums *sums;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "sp", &path, &on)) return NULL;
  if (!(sums = find(path)) || (on && !sums->begun)) Py_RETURN_FALSE;
  sums->deferring = on;
  if (on) sums->unsynced = 0;
  Py_RETURN_TRUE;
}

static PyObject *damaged(PyObject *self, PyObject *none) {
  (void)self, (void)none;
  return PyBool_FromLong(damages);
}

static PyObject *check(PyObject *self, PyObject *arguments) {
  Py_buffer entries;
  uint64_t sum;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "y*", &entries)) return NULL;
  sum = entries_sum(entries.buf, (size_t)entries.len / 4);
  PyBuffer_Release(&entries);
  return PyLong_FromUnsignedLongLong(sum);
}

static PyMethodDef methods[] = {
    {"check", check, METH_VARARGS, "check(entries): the sum of a record of the journal."},
    {"install", install, METH_VARARGS, "install(path of the lsm module): replace the library's file calls, once."},
    {"attach", attach, METH_VARARGS,
     "attach(data file, journal fd, journal bytes, sums, bytes to rewrite it at): check pages from now on."},
    {"detach", detach, METH_VARARGS, "detach(data file): stop once the library has closed it; closes the journal."},
    {"status", status, METH_VARARGS, "status(data file) -> (errno of a failed sync, corrupt page or -1, journal bytes)."},
    {"unsynced", unsynced, METH_VARARGS, "unsynced(data file) -> pages written since the journal's last record."},
    {"begin", begin, METH_VARARGS,
     "begin(data file) -> (journal fd, fd of the journal that is to replace it or -1): to be synced, with the file."},
    {"replace", replace, METH_VARARGS,
     "replace(data file) -> whether the journal that was synced took the name; its folder is to be synced."},
    {"defer", defer, METH_VARARGS,
     "defer(data file, whether) -> False if pages were written since `begin`; leave out the library's syncs."},
    {"damaged", damaged, METH_NOARGS, "damaged() -> whether a page of any data file failed its check in this process."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_lsm_vfs", "File calls of lsm-db with page sums.", -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__lsm_vfs(void) { return PyModule_Create(&module); }
