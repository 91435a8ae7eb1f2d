/* A clock that is off: preloaded into a worker whose node's time of day is wrong by CLOCK_AHEAD seconds.
 *
 * Only the time of day is changed. Clocks that count from the start of the machine are right, as they are on such a node.
 * A wait until a time of day is turned back, because the kernel's clock is the true one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) {
  static int known;
  static long seconds;
  if (!known) {
    const char *text = getenv("CLOCK_AHEAD");
    seconds = text ? atol(text) : 0;
    known = 1;
  }
  return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
    now->tv_sec += ahead();
  return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &exact))
    return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *result) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now))
    return -1;
  if (result)
    *result = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  struct timespec true_time = *until;
  if (!real) /* the version of today's conditions, not the first one that a plain look-up may give */
    real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (true_time.tv_sec > 1000000000) /* a time of day; a condition may also count from the start of the machine */
    true_time.tv_sec -= ahead();
  return real(condition, mutex, &true_time);
}
