/* Interposed sync and clock calls whose faults can be changed while the process runs.
 *
 * CHAOS_CONTROL names a file that is mapped; the harness writes the numbers, this reads them at every call:
 *   sync_delay_us   every fsync/fdatasync takes so much longer
 *   fail_syncs      so many of the next syncs fail with EIO, and are not carried out
 *   clock_shift_s   CLOCK_REALTIME is off by so much; no other clock is touched
 * What reads the wall clock without libc's functions is not reached.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
  int64_t sync_delay_us, fail_syncs, clock_shift_s, syncs_failed;
};

static struct control calm, *control = &calm;

__attribute__((constructor)) static void map_control(void) {
  const char *path = getenv("CHAOS_CONTROL");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  void *page;
  if (file < 0) return;
  page = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (page != MAP_FAILED) control = page;
}

static int sync_file(int descriptor, long call) {
  if (control->sync_delay_us > 0) usleep((useconds_t)control->sync_delay_us);
  if (control->fail_syncs > 0) {
    control->fail_syncs--;
    control->syncs_failed++;
    errno = EIO;
    return -1;
  }
  return (int)syscall(call, descriptor);
}

int fsync(int descriptor) { return sync_file(descriptor, SYS_fsync); }
int fdatasync(int descriptor) { return sync_file(descriptor, SYS_fdatasync); }

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
