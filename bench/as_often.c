/* Takes the processor as often and as long as it is told, without a call of the kernel in between: `as_often TIMES US`
 * runs for US microseconds of processor time TIMES times a second. bench/waits.py puts it in the place of a node. */

#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

static int64_t now(clockid_t clock)
{
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 3 || atof(argv[1]) <= 0) {
        fprintf(stderr, "usage: as_often TIMES_A_SECOND MICROSECONDS\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* it ends with whoever started it */
    int64_t period = (int64_t)(1e9 / atof(argv[1])), run = (int64_t)(1e3 * atof(argv[2]));
    for (int64_t next = now(CLOCK_MONOTONIC) + period;; next += period) {
        struct timespec until = {next / 1000000000LL, next % 1000000000LL};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
            ;
        int64_t end = now(CLOCK_THREAD_CPUTIME_ID) + run;
        while (now(CLOCK_THREAD_CPUTIME_ID) < end)
            for (volatile int spin = 0; spin < 2000; spin++)
                ;
    }
}
