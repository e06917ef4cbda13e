/* Lets time run at another speed for a process and those that it starts: loaded before libc with LD_PRELOAD.

   CLOCK_SPEED is how fast clocks run: at 0.2, five seconds pass for one of theirs, so that the processor seems five times
   as fast as it is; at 3, it seems three times as slow. What a program waits for takes accordingly longer or shorter.
   Clocks of processor time are left alone, and so is what only the kernel times, such as the resending of TCP.

   CLOCK_EPOCH is when this began; the first process sets it, since the clocks of all processes have to agree. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef long long nanoseconds;
enum { SECOND = 1000000000, MONOTONIC_MAX = 4096 };

static double speed = 1;
static nanoseconds epochs[CLOCK_BOOTTIME + 1];
static int is_ready;

/* Condition variables that wait by the steady clock: the others do by the wall clock. */
static pthread_cond_t *monotonic[MONOTONIC_MAX];
static pthread_mutex_t monotonic_lock = PTHREAD_MUTEX_INITIALIZER;

static void lock_monotonic(void) { pthread_mutex_lock(&monotonic_lock); }
static void unlock_monotonic(void) { pthread_mutex_unlock(&monotonic_lock); }

static nanoseconds number(const struct timespec *time) { return time->tv_sec * (nanoseconds)SECOND + time->tv_nsec; }

static struct timespec text(nanoseconds time) {
    struct timespec result = {time / SECOND, time % SECOND};
    return result;
}

static nanoseconds true_time(clockid_t clock) {
    struct timespec time;
    syscall(SYS_clock_gettime, clock, &time);
    return number(&time);
}

__attribute__((constructor)) static void begin(void) {
    if (is_ready)
        return;
    static const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME};
    const char *given = getenv("CLOCK_SPEED"), *epoch = getenv("CLOCK_EPOCH");
    nanoseconds *real = &epochs[CLOCK_REALTIME], *steady = &epochs[CLOCK_MONOTONIC], *boot = &epochs[CLOCK_BOOTTIME];
    if (given)
        speed = atof(given);
    if (!epoch || sscanf(epoch, "%lld,%lld,%lld", real, steady, boot) != 3) {
        char buffer[80];
        for (int index = 0; index < 3; index++)
            epochs[clocks[index]] = true_time(clocks[index]);
        snprintf(buffer, sizeof buffer, "%lld,%lld,%lld", *real, *steady, *boot);
        setenv("CLOCK_EPOCH", buffer, 1);
    }
    pthread_atfork(lock_monotonic, unlock_monotonic, unlock_monotonic);
    is_ready = 1;
}

/* Times before the epoch are as they were. */
static nanoseconds shown(clockid_t clock, nanoseconds time) {
    nanoseconds epoch = epochs[clock];
    return time < epoch ? time : epoch + (nanoseconds)((time - epoch) * speed);
}

static nanoseconds unshown(clockid_t clock, nanoseconds time) {
    nanoseconds epoch = epochs[clock];
    return time < epoch ? time : epoch + (nanoseconds)((time - epoch) / speed);
}

/* Which epoch a clock goes by; -1 for clocks of processor time. */
static int kind(clockid_t clock) {
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        return CLOCK_REALTIME;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
        return CLOCK_MONOTONIC;
    case CLOCK_BOOTTIME:
        return CLOCK_BOOTTIME;
    }
    return -1;
}

static struct timespec true_end(clockid_t clock, const struct timespec *end) {
    return text(kind(clock) < 0 ? number(end) : unshown(kind(clock), number(end)));
}

static struct timespec true_span(const struct timespec *span) { return text((nanoseconds)(number(span) / speed)); }

/* A wait does not become a look, which would be repeated all the time. */
static int true_milliseconds(int span) { return span <= 0 ? span : span / speed < 1 ? 1 : (int)(span / speed); }

/* What libc has under this name; condition variables exist in two versions. */
#define LIBC(name)                                                                                                     \
    static __typeof__(name) *libc;                                                                                     \
    begin();                                                                                                           \
    if (!libc)                                                                                                         \
        libc = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define LIBC_CONDITION(name)                                                                                           \
    static __typeof__(name) *libc;                                                                                     \
    begin();                                                                                                           \
    if (!libc)                                                                                                         \
        libc = (__typeof__(name) *)dlvsym(RTLD_NEXT, #name, "GLIBC_2.3.2")

/* -- clocks ------------------------------------------------------------------------------------------------------ */

int clock_gettime(clockid_t clock, struct timespec *time) {
    LIBC(clock_gettime);
    int result = libc(clock, time);
    if (!result && kind(clock) >= 0)
        *time = text(shown(kind(clock), number(time)));
    return result;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *time, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

/* -- times of files ---------------------------------------------------------------------------------------------- */

static int shown_file(int result, struct stat *file) {
    if (!result) {
        file->st_atim = text(shown(CLOCK_REALTIME, number(&file->st_atim)));
        file->st_mtim = text(shown(CLOCK_REALTIME, number(&file->st_mtim)));
        file->st_ctim = text(shown(CLOCK_REALTIME, number(&file->st_ctim)));
    }
    return result;
}

int stat(const char *path, struct stat *file) {
    LIBC(stat);
    return shown_file(libc(path, file), file);
}

int lstat(const char *path, struct stat *file) {
    LIBC(lstat);
    return shown_file(libc(path, file), file);
}

int fstat(int descriptor, struct stat *file) {
    LIBC(fstat);
    return shown_file(libc(descriptor, file), file);
}

int fstatat(int directory, const char *path, struct stat *file, int flags) {
    LIBC(fstatat);
    return shown_file(libc(directory, path, file, flags), file);
}

int stat64(const char *path, struct stat64 *file) { return stat(path, (struct stat *)file); }
int lstat64(const char *path, struct stat64 *file) { return lstat(path, (struct stat *)file); }
int fstat64(int descriptor, struct stat64 *file) { return fstat(descriptor, (struct stat *)file); }
int fstatat64(int directory, const char *path, struct stat64 *file, int flags) {
    return fstatat(directory, path, (struct stat *)file, flags);
}

/* -- waits ------------------------------------------------------------------------------------------------------- */

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *end, struct timespec *left) {
    LIBC(clock_nanosleep);
    struct timespec until = flags & TIMER_ABSTIME ? true_end(clock, end) : true_span(end);
    int result = libc(clock, flags, &until, left);
    if (result == EINTR && left && !(flags & TIMER_ABSTIME))
        *left = text((nanoseconds)(number(left) * speed));
    return result;
}

int nanosleep(const struct timespec *span, struct timespec *left) {
    int result = clock_nanosleep(CLOCK_MONOTONIC, 0, span, left);
    if (result)
        errno = result;
    return result ? -1 : 0;
}

int poll(struct pollfd *files, nfds_t count, int span) {
    LIBC(poll);
    return libc(files, count, true_milliseconds(span));
}

int __poll_chk(struct pollfd *files, nfds_t count, int span, size_t bytes) {
    (void)bytes;
    return poll(files, count, span);
}

int epoll_wait(int descriptor, struct epoll_event *events, int count, int span) {
    LIBC(epoll_wait);
    return libc(descriptor, events, count, true_milliseconds(span));
}

int select(int count, fd_set *read, fd_set *write, fd_set *other, struct timeval *span) {
    LIBC(select);
    if (!span)
        return libc(count, read, write, other, span);
    struct timespec given = {span->tv_sec, span->tv_usec * 1000}, wait = true_span(&given);
    struct timeval rounded = {wait.tv_sec, wait.tv_nsec / 1000};
    return libc(count, read, write, other, &rounded);
}

int setitimer(__itimer_which_t which, const struct itimerval *given, struct itimerval *old) {
    LIBC(setitimer);
    if (which != ITIMER_REAL)
        return libc(which, given, old);
    struct timespec first = {given->it_value.tv_sec, given->it_value.tv_usec * 1000};
    struct timespec further = {given->it_interval.tv_sec, given->it_interval.tv_usec * 1000};
    first = true_span(&first);
    further = true_span(&further);
    struct itimerval timer = {{further.tv_sec, further.tv_nsec / 1000}, {first.tv_sec, first.tv_nsec / 1000}};
    return libc(which, &timer, old);
}

/* -- waits for threads ------------------------------------------------------------------------------------------- */

int sem_timedwait(sem_t *semaphore, const struct timespec *end) {
    LIBC(sem_timedwait);
    struct timespec until = true_end(CLOCK_REALTIME, end);
    return libc(semaphore, &until);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *end) {
    LIBC(sem_clockwait);
    struct timespec until = true_end(clock, end);
    return libc(semaphore, clock, &until);
}

int pthread_cond_clockwait(
    pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *end) {
    LIBC(pthread_cond_clockwait);
    struct timespec until = true_end(clock, end);
    return libc(condition, mutex, clock, &until);
}

static int place_of(const pthread_cond_t *condition) {
    int place = 0;
    while (place < MONOTONIC_MAX && monotonic[place] != condition)
        place++;
    return place;
}

int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes) {
    LIBC_CONDITION(pthread_cond_init);
    clockid_t clock = CLOCK_REALTIME;
    if (attributes)
        pthread_condattr_getclock(attributes, &clock);
    lock_monotonic();
    int place = place_of(condition);
    if (place < MONOTONIC_MAX)
        monotonic[place] = NULL;
    if (clock == CLOCK_MONOTONIC) {
        place = place_of(NULL);
        if (place == MONOTONIC_MAX)
            abort();
        monotonic[place] = condition;
    }
    unlock_monotonic();
    return libc(condition, attributes);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *end) {
    LIBC_CONDITION(pthread_cond_timedwait);
    lock_monotonic();
    clockid_t clock = place_of(condition) < MONOTONIC_MAX ? CLOCK_MONOTONIC : CLOCK_REALTIME;
    unlock_monotonic();
    struct timespec until = true_end(clock, end);
    return libc(condition, mutex, &until);
}
