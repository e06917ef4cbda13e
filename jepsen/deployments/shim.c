/* Between a broker and the C library: a wall clock that is wrong, and disks that fail or are slow.
 *
 * Preloaded (LD_PRELOAD). What it does is in a page that the test writes and this process reads, mapped from the file
 * named by RAFTMQ_JEPSEN_SHIM; layout as in shim.py. Only the wall clock moves: timers run on the monotonic one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    volatile int64_t skew_ns;      /* added to the wall clock */
    volatile int64_t strobe_ns;    /* half the period in which the skew comes and goes; 0: it stays */
    volatile int64_t write_errno;  /* 0: writes to files work */
    volatile int64_t sync_errno;   /* 0: syncs work */
    volatile int64_t sync_us;      /* how much longer a sync takes */
    int64_t clock_hits;            /* how often a wrong time was told */
    int64_t write_hits;            /* how many writes failed */
    int64_t sync_hits;             /* how many syncs failed or were slow */
};

static struct control none;
static struct control *control = &none;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void start(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("RAFTMQ_JEPSEN_SHIM");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) control = page;
}

#define COUNT(what) __atomic_fetch_add(&control->what, 1, __ATOMIC_RELAXED)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void skew(struct timespec *now) {
    int64_t by = control->skew_ns;
    if (by == 0) return;
    if (control->strobe_ns) {
        struct timespec mono;
        real_clock_gettime(CLOCK_MONOTONIC, &mono);
        if ((mono.tv_sec * 1000000000LL + mono.tv_nsec) / control->strobe_ns % 2) return;
    }
    int64_t at = now->tv_sec * 1000000000LL + now->tv_nsec + by;
    now->tv_sec = at / 1000000000LL;
    now->tv_nsec = at % 1000000000LL;
    COUNT(clock_hits);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_clock_gettime) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real_clock_gettime(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) skew(now);
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *where) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (where) *where = exact.tv_sec;
    return exact.tv_sec;
}

/* Sockets and pipes go on: what fails is the disk. */
static int is_file(int fd) {
    struct stat about;
    return fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
}

/* Not 0, and errno set, if this write is to fail. Standard output is a file in a run, and is left alone. */
static int write_fails(int fd) {
    if (control->write_errno == 0 || fd <= 2 || !is_file(fd)) return 0;
    COUNT(write_hits);
    errno = (int)control->write_errno;
    return 1;
}

static int sync_fails(void) {
    if (control->sync_us) {
        struct timespec pause = {control->sync_us / 1000000, control->sync_us % 1000000 * 1000};
        COUNT(sync_hits);
        nanosleep(&pause, NULL);
    }
    if (control->sync_errno == 0) return 0;
    COUNT(sync_hits);
    errno = (int)control->sync_errno;
    return 1;
}

ssize_t write(int fd, const void *data, size_t size) {
    return write_fails(fd) ? -1 : REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return write_fails(fd) ? -1 : REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return write_fails(fd) ? -1 : REAL(pwrite64)(fd, data, size, at);
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) {
    return write_fails(fd) ? -1 : REAL(pwritev)(fd, pieces, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t at) {
    return write_fails(fd) ? -1 : REAL(pwritev64)(fd, pieces, count, at);
}

/* With RWF_DSYNC a write is a sync as well. */
ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t at, int flags) {
    if (write_fails(fd) || ((flags & RWF_DSYNC) && sync_fails())) return -1;
    return REAL(pwritev2)(fd, pieces, count, at, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off64_t at, int flags) {
    if (write_fails(fd) || ((flags & RWF_DSYNC) && sync_fails())) return -1;
    return REAL(pwritev64v2)(fd, pieces, count, at, flags);
}

int fsync(int fd) { return sync_fails() ? -1 : REAL(fsync)(fd); }

int fdatasync(int fd) { return sync_fails() ? -1 : REAL(fdatasync)(fd); }
