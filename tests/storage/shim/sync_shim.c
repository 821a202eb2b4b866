/* Interposed sync calls: what a power loss would leave of a folder, and syncs that are slow, fail or lie.
 *
 * Every fsync/fdatasync of a file below SHIM_FOLDER copies the file to SHIM_IMAGE (write to a side name, then rename),
 * so that SHIM_IMAGE holds exactly what was synced; renames reach it with the next sync of the folder. The library under test knows nothing of it.
 *   SHIM_SYNC_US=n      each sync takes n microseconds longer
 *   SHIM_EIO_AT=n       the n-th sync of a file ending in "-log" or "-ahead" fails with EIO, once
 *   SHIM_NAMES=path     each sync appends the name of its file to that one, behind "loop " if the main thread waits for it
 *   SHIM_PAGES=1        pages of a data file (".lsm"), its headers excepted, reach SHIM_IMAGE as they are written: a disk may do so
 *   SHIM_DIES_AT=n      the process is killed behind the n-th of those
 *   SHIM_LIE_AFTER=n    from the n-th such sync on, syncs return 0 and nothing is copied
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PENDING_MAX 8
#define HEADERS_BYTES 8192

static long log_syncs, pages;
static struct {
  char from[PATH_MAX], to[PATH_MAX];
} pending[PENDING_MAX]; /* renames that no sync of the folder made durable yet */
static int pending_count;

static long setting(const char *name) {
  const char *text = getenv(name);
  return text ? atol(text) : 0;
}

static int ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

static void copy_to_image(int source, const char *name) {
  static char buffer[1 << 20]; /* the store never runs two syncs at once */
  char side[PATH_MAX], goal[PATH_MAX];
  const char *image = getenv("SHIM_IMAGE");
  off_t at = 0;
  ssize_t n;
  int target;
  snprintf(side, sizeof side, "%s/.%s.copy", image, name);
  snprintf(goal, sizeof goal, "%s/%s", image, name);
  target = open(side, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (target < 0) abort();
  while ((n = pread(source, buffer, sizeof buffer, at)) > 0) {
    if (pwrite(target, buffer, (size_t)n, at) != n) abort();
    at += n;
  }
  close(target);
  if (rename(side, goal) != 0) abort();
}

static void note_name(const char *name) {
  char line[PATH_MAX + 16];
  const char *path = getenv("SHIM_NAMES");
  int file, n, by_loop = (pid_t)syscall(SYS_gettid) == getpid();
  if (!path) return;
  n = snprintf(line, sizeof line, "%s%s\n", by_loop ? "loop " : "", name);
  file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file < 0 || write(file, line, (size_t)n) != n) abort();
  close(file);
}

static void apply_renames(void) { /* durable with the folder */
  for (int i = 0; i < pending_count; i++) syscall(SYS_rename, pending[i].from, pending[i].to);
  pending_count = 0;
}

static int sync_file(int descriptor, long call) {
  char link[64], path[PATH_MAX];
  const char *folder = getenv("SHIM_FOLDER");
  struct stat status;
  ssize_t n;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  n = readlink(link, path, sizeof path - 1);
  if (n <= 0 || !folder) return (int)syscall(call, descriptor);
  path[n] = 0;
  if (strncmp(path, folder, strlen(folder)) != 0) return (int)syscall(call, descriptor);
  note_name(strrchr(path, '/') + 1);
  if (setting("SHIM_SYNC_US")) usleep((useconds_t)setting("SHIM_SYNC_US"));
  if (ends_with(path, "-log") || ends_with(path, "-ahead")) {
    log_syncs++;
    if (setting("SHIM_EIO_AT") == log_syncs) {
      errno = EIO;
      return -1;
    }
  }
  if (setting("SHIM_LIE_AFTER") && log_syncs >= setting("SHIM_LIE_AFTER")) return 0;
  if (!getenv("SHIM_IMAGE") || fstat(descriptor, &status) != 0) return 0;
  if (S_ISDIR(status.st_mode)) apply_renames();
  if (S_ISREG(status.st_mode)) {
    /* Through the path's own descriptor: the caller's may be write-only. */
    int source = open(link, O_RDONLY);
    if (source >= 0) {
      copy_to_image(source, strrchr(path, '/') + 1);
      close(source);
    }
  }
  return 0;
}

int rename(const char *from, const char *to) {
  const char *folder = getenv("SHIM_FOLDER"), *image = getenv("SHIM_IMAGE");
  int rc = (int)syscall(SYS_rename, from, to);
  if (rc == 0 && folder && image && strncmp(from, folder, strlen(folder)) == 0 && pending_count < PENDING_MAX) {
    snprintf(pending[pending_count].from, PATH_MAX, "%s/%s", image, strrchr(from, '/') + 1);
    snprintf(pending[pending_count++].to, PATH_MAX, "%s/%s", image, strrchr(to, '/') + 1);
  }
  return rc;
}

static ssize_t write_page(int descriptor, const void *data, size_t bytes, off_t at) {
  char link[64], path[PATH_MAX], goal[PATH_MAX];
  const char *folder = getenv("SHIM_FOLDER"), *image = getenv("SHIM_IMAGE");
  ssize_t done = (ssize_t)syscall(SYS_pwrite64, descriptor, data, bytes, at), n;
  int target;
  if (done <= 0 || at < HEADERS_BYTES || !folder || !image || !setting("SHIM_PAGES")) return done;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return done;
  path[n] = 0;
  if (strncmp(path, folder, strlen(folder)) != 0 || !ends_with(path, ".lsm")) return done;
  snprintf(goal, sizeof goal, "%s/%s", image, strrchr(path, '/') + 1);
  target = open(goal, O_WRONLY | O_CLOEXEC); /* not there: its name is not durable either */
  if (target < 0) return done;
  if ((ssize_t)syscall(SYS_pwrite64, target, data, (size_t)done, at) != done) abort();
  close(target);
  if (++pages == setting("SHIM_DIES_AT")) kill(getpid(), SIGKILL);
  return done;
}

ssize_t pwrite(int descriptor, const void *data, size_t bytes, off_t at) { return write_page(descriptor, data, bytes, at); }
ssize_t pwrite64(int descriptor, const void *data, size_t bytes, off_t at) { return write_page(descriptor, data, bytes, at); }
int fsync(int descriptor) { return sync_file(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return sync_file(descriptor, SYS_fdatasync); }
