/* Interposed file, sync, send and clock calls whose faults can be changed while the process runs.
 *
 * CHAOS_CONTROL names a file that is mapped; the harness writes the numbers, this reads them at every call:
 *   sync_delay_us   every fsync/fdatasync takes so much longer
 *   fail_syncs      so many of the next syncs fail with EIO, and are not carried out
 *   clock_shift_s   CLOCK_REALTIME is off by so much; no other clock is touched
 *   crash_point     kill -9 of this process at one kind of call: see enum point
 *   crash_after     ... when so many more of them came
 * What reads the wall clock without libc's functions is not reached.
 *
 * CHAOS_JOURNAL names a file that is appended to before every write below CHAOS_FOLDER: what was there before, and after
 * every sync which file it was and where the journal stood when the sync began. With it the harness takes back what a
 * loss of power would take (node_disk.py). Names of files (creation, rename, removal) and truncation are durable at once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum point { BEFORE_SYNC = 1, AFTER_SYNC, BEFORE_WRITE, AFTER_WRITE, BEFORE_RENAME, AFTER_RENAME, BEFORE_SEND, AFTER_SEND };
enum kind { WROTE = 1, SYNCED, FORGET };

struct control {
  int64_t sync_delay_us, fail_syncs, clock_shift_s, syncs_failed, crash_point, crash_after;
};

struct record {
  uint32_t kind, old_bytes;    /* bytes that follow: what stood at the offset */
  uint64_t inode, at, length, old_size; /* of SYNCED: at is a place in the journal */
};

static struct control calm, *control = &calm;
static int journal = -1;
static dev_t device;
static pthread_mutex_t journal_lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void map_control(void) {
  const char *path = getenv("CHAOS_CONTROL"), *folder = getenv("CHAOS_FOLDER"), *name = getenv("CHAOS_JOURNAL");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  struct stat status;
  void *page;
  if (folder && name && stat(folder, &status) == 0) {
    device = status.st_dev;
    journal = open(name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  }
  if (file < 0) return;
  page = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (page != MAP_FAILED) control = page;
}

static void pass(enum point point) {
  if (control->crash_point != (int64_t)point) return;
  if (__atomic_fetch_sub(&control->crash_after, 1, __ATOMIC_SEQ_CST) <= 1) {
    control->crash_point = -(int64_t)point; /* told to the harness: reached */
    syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
  }
}

/* Whether a descriptor is a regular file below the node's folder. */
static int is_ours(int descriptor, struct stat *status) {
  char link[64], path[4096];
  const char *folder = getenv("CHAOS_FOLDER");
  ssize_t length;
  if (journal < 0 || descriptor == journal || folder == NULL) return 0;
  if (fstat(descriptor, status) != 0 || !S_ISREG(status->st_mode) || status->st_dev != device) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  length = readlink(link, path, sizeof path - 1);
  return length > 0 && strncmp(path, folder, strlen(folder)) == 0;
}

static void append(struct record *record, const void *old) {
  struct iovec parts[2] = {{record, sizeof *record}, {(void *)old, record->old_bytes}};
  if (syscall(SYS_writev, journal, parts, 2) < 0) abort();
}

static void note_write(int descriptor, int64_t at, size_t length) {
  struct stat status;
  struct record record = {WROTE, 0, 0, 0, length, 0};
  char *old;
  if (length == 0 || !is_ours(descriptor, &status)) return;
  if (at < 0) at = (fcntl(descriptor, F_GETFL) & O_APPEND) ? status.st_size : lseek(descriptor, 0, SEEK_CUR);
  old = malloc(length);
  if (old == NULL) abort();
  if (at < status.st_size) {
    char link[64];
    int reading; /* the descriptor may be open for writing only */
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    reading = open(link, O_RDONLY | O_CLOEXEC);
    ssize_t got = reading < 0 ? 0 : pread(reading, old, length, at);
    if (reading >= 0) close(reading);
    record.old_bytes = got > 0 ? (uint32_t)got : 0;
  }
  record.inode = status.st_ino;
  record.at = (uint64_t)at;
  record.old_size = (uint64_t)status.st_size;
  pthread_mutex_lock(&journal_lock);
  append(&record, old);
  pthread_mutex_unlock(&journal_lock);
  free(old);
}

static void forget(const char *path) {
  struct stat status;
  struct record record = {FORGET, 0, 0, 0, 0, 0};
  if (journal < 0 || lstat(path, &status) != 0 || !S_ISREG(status.st_mode) || status.st_dev != device) return;
  if (status.st_nlink > 1) return;
  record.inode = status.st_ino;
  append(&record, "");
}

static int sync_file(int descriptor, long call) {
  struct stat status;
  int ours = is_ours(descriptor, &status), rc;
  struct record record = {SYNCED, 0, 0, 0, 0, 0};
  if (ours) record.at = (uint64_t)lseek(journal, 0, SEEK_END);
  pass(BEFORE_SYNC);
  if (control->sync_delay_us > 0) usleep((useconds_t)control->sync_delay_us);
  if (control->fail_syncs > 0) {
    control->fail_syncs--;
    control->syncs_failed++;
    errno = EIO;
    return -1;
  }
  rc = (int)syscall(call, descriptor);
  if (ours && rc == 0) {
    record.inode = status.st_ino;
    append(&record, "");
  }
  pass(AFTER_SYNC);
  return rc;
}

int fsync(int descriptor) { return sync_file(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return sync_file(descriptor, SYS_fdatasync); }

ssize_t pwrite64(int descriptor, const void *data, size_t length, off_t at) {
  ssize_t rc;
  note_write(descriptor, at, length);
  pass(BEFORE_WRITE);
  rc = syscall(SYS_pwrite64, descriptor, data, length, at);
  pass(AFTER_WRITE);
  return rc;
}

ssize_t pwrite(int descriptor, const void *data, size_t length, off_t at) {
  return pwrite64(descriptor, data, length, at);
}

ssize_t write(int descriptor, const void *data, size_t length) {
  note_write(descriptor, -1, length);
  return syscall(SYS_write, descriptor, data, length);
}

int rename(const char *from, const char *to) {
  int rc;
  forget(to);
  pass(BEFORE_RENAME);
  rc = (int)syscall(SYS_rename, from, to);
  pass(AFTER_RENAME);
  return rc;
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  if (to_folder == AT_FDCWD) forget(to);
  pass(BEFORE_RENAME);
  int rc = (int)syscall(SYS_renameat, from_folder, from, to_folder, to);
  pass(AFTER_RENAME);
  return rc;
}

int unlink(const char *path) {
  forget(path);
  return (int)syscall(SYS_unlink, path);
}

ssize_t send(int descriptor, const void *data, size_t length, int flags) {
  ssize_t rc;
  pass(BEFORE_SEND);
  rc = syscall(SYS_sendto, descriptor, data, length, flags, NULL, 0);
  pass(AFTER_SEND);
  return rc;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int rc = (int)syscall(SYS_clock_gettime, clock, now);
  if (rc == 0 && clock == CLOCK_REALTIME) now->tv_sec += control->clock_shift_s;
  return rc;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  int rc = (int)syscall(SYS_gettimeofday, now, zone);
  if (rc == 0 && now) now->tv_sec += control->clock_shift_s;
  return rc;
}

time_t time(time_t *result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}
