# The C functions of Linux that the loop calls. Uncompiled, os and select replace them.
from libc.stdint cimport uint32_t, uint64_t


cdef extern from "sys/epoll.h" nogil:
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
    ctypedef union epoll_data_t:
        int fd
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    int EPOLL_CTL_DEL
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)


cdef extern from "sys/socket.h" nogil:
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    int SHUT_WR
    int shutdown(int fd, int how)
    Py_ssize_t send(int fd, const void* data, size_t count, int flags)
    Py_ssize_t recv(int fd, void* data, size_t count, int flags)


cdef extern from "sys/ioctl.h" nogil:
    int FIONREAD
    int ioctl(int fd, unsigned long request, int* value)


cdef extern from "unistd.h" nogil:
    Py_ssize_t read(int fd, void* data, size_t count)
    int close_fd "close"(int fd)


cdef extern from "time.h" nogil:
    ctypedef long time_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_BOOTTIME
    int clock_gettime(int clock, timespec* result)
    struct itimerspec:
        timespec it_interval
        timespec it_value


cdef extern from "sys/timerfd.h" nogil:
    int TFD_NONBLOCK
    int TFD_CLOEXEC
    int TFD_TIMER_ABSTIME
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec* new_value, itimerspec* old_value)


cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <poll.h>
    #include <time.h>
    #include <unistd.h>
    #include <sys/syscall.h>
    #include <signal.h>
    /* Wait for one descriptor with nanosecond resolution. ppoll itself is only declared with _GNU_SOURCE. */
    static __attribute__((unused)) int wait_ns(int fd, long ns) {
        struct pollfd one = {fd, POLLIN, 0};
        struct timespec left = {ns / 1000000000L, ns % 1000000000L};
        return (int)syscall(SYS_ppoll, &one, fd < 0 ? 0 : 1, &left, (void *)0, (size_t)(_NSIG / 8));
    }
    """
    int wait_ns(int fd, long ns) nogil


cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <arpa/inet.h>
    #include <netinet/in.h>
    #include <sys/socket.h>
    #define ADDRESS_BYTES INET6_ADDRSTRLEN
    /* Accept a socket that does not block, and write its peer's address as text, "" where it is no IP address, and port. */
    static __attribute__((unused)) int accept_from(int fd, char *text, int *port) {
        union { struct sockaddr any; struct sockaddr_in four; struct sockaddr_in6 six; } peer;
        socklen_t size = sizeof peer;
        int taken = accept4(fd, &peer.any, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        text[0] = 0;
        *port = 0;
        if (taken >= 0 && peer.any.sa_family == AF_INET) {
            inet_ntop(AF_INET, &peer.four.sin_addr, text, ADDRESS_BYTES);
            *port = ntohs(peer.four.sin_port);
        } else if (taken >= 0 && peer.any.sa_family == AF_INET6) {
            inet_ntop(AF_INET6, &peer.six.sin6_addr, text, ADDRESS_BYTES);
            *port = ntohs(peer.six.sin6_port);
        }
        return taken;
    }
    """
    int ADDRESS_BYTES
    int accept_from(int fd, char* text, int* port)


cdef extern from *:
    """
    /* Whether no other Python thread exists: then nobody can want the interpreter lock while this one blocks. */
    static __attribute__((unused)) int only_thread(void) {
        PyThreadState *mine = PyThreadState_Get();
        return PyInterpreterState_ThreadHead(mine->interp) == mine && PyThreadState_Next(mine) == NULL;
    }
    """
    int only_thread()
