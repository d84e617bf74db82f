/* Replaces functions of the C library: every second read or write is interrupted, and the others move at most 7
   bytes. A program that asks for the time of day is aborted. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static size_t at_most_7(size_t count)
{
    return count < 7 ? count : 7;
}

static int is_interrupted(void)
{
    static int turn;
    errno = EINTR;
    return ++turn % 2;
}

ssize_t read(int fd, void *buffer, size_t count)
{
    return is_interrupted() ? -1 : syscall(SYS_read, fd, buffer, at_most_7(count));
}

ssize_t pread64(int fd, void *buffer, size_t count, off64_t offset)
{
    return is_interrupted() ? -1 : syscall(SYS_pread64, fd, buffer, at_most_7(count), offset);
}

ssize_t write(int fd, const void *buffer, size_t count)
{
    return is_interrupted() ? -1 : syscall(SYS_write, fd, buffer, at_most_7(count));
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock != CLOCK_MONOTONIC)
        abort();
    return syscall(SYS_clock_gettime, clock, time);
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    (void)time;
    (void)zone;
    abort();
}

time_t time(time_t *time)
{
    (void)time;
    abort();
}
