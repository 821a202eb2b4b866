/* A disk whose syncs take long, or fail once: preloaded, told by a file of numbers what to do from now on.
 *
 *   SLOW_DISK_CONTROL  file: microseconds that each fsync and fdatasync takes longer; how many of the next ones fail with EIO;
 *                      and a count of what took longer so in the main thread
 *   SLOW_DISK_FILES    only syncs of files with this in their name
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int64_t calm[3], *control = calm;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("SLOW_DISK_CONTROL");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof calm, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (page != MAP_FAILED) control = page;
  if (file >= 0) close(file);
}

static int slow(int descriptor, long call) {
  char link[64], path[4096];
  const char *wanted = getenv("SLOW_DISK_FILES");
  ssize_t length;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  if (wanted && strstr(path, wanted)) {
    if (control[0] > 0 && (pid_t)syscall(SYS_gettid) == getpid()) {
      __atomic_fetch_add(&control[2], 1, __ATOMIC_SEQ_CST);
      fprintf(stderr, "slow disk: the main thread waits for %s\n", path);
    }
    if (control[0] > 0) usleep((useconds_t)control[0]);
    if (control[1] > 0 && __atomic_fetch_sub(&control[1], 1, __ATOMIC_SEQ_CST) > 0) {
      errno = EIO;
      return -1;
    }
  }
  return (int)syscall(call, descriptor);
}

int fdatasync(int descriptor) { return slow(descriptor, SYS_fdatasync); }
int fsync(int descriptor) { return slow(descriptor, SYS_fsync); }
