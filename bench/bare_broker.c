/*
 * The least that a broker can do while it is attacked: one epoll_wait, one recv, one send, one C process.
 *
 * Knows what the attackers and the honest clients of `tests/e2e` say by MQTT 5, and no more: CONNACK, SUBACK, filters
 * that are a name or end in #, PUBACK, copies of QoS 0, PINGRESP. No sessions, no retained messages, no TLS: not a broker.
 * A receiver that does not read loses copies. A WebSocket is answered 101, then its first frame 1008.
 * With a program behind it, the only user is `ann`; each other name costs one byte to that program, which answers each
 * with a byte when it has computed a hash; 200 wait, more get 0x89. Ten failures of an address, and it gets 0x9F.
 *
 *   cc -O2 -std=c11 bare_broker.c -o bare_broker && ./bare_broker [PROGRAM WORDS ...]      prints its ports: MQTT, WebSocket
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECTIONS_MAX = 16384,
    INPUT_MAX = 65536,
    EVENTS_MAX = 64,
    FILTER_MAX = 128,
    SUBSCRIPTIONS_MAX = 4096,
    WAITING_MAX = 200,
    FAILURES_MAX = 10,
};

static struct connection {
    unsigned char *input, *rest; /* what came; what its socket did not take */
    int filled, left, sent, is_websocket;
    unsigned number, address;
} connections[CONNECTIONS_MAX]; /* by descriptor */

static struct subscription {
    unsigned char filter[FILTER_MAX];
    int length, fd;
} subscriptions[SUBSCRIPTIONS_MAX];

static struct {
    int fd;
    unsigned number;
} waiting[WAITING_MAX]; /* for a hash, in their order */

static int poller, subscribed, hasher = -1, first_waiting, waits;
static unsigned numbers, failures[256]; /* failures by the last part of an address */

static void watch(int fd, unsigned events, int operation)
{
    struct epoll_event event = {.events = events, .data.fd = fd};
    epoll_ctl(poller, operation, fd, &event);
}

static void say(int fd, const void *data, size_t size)
{
    send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void end(int fd)
{
    for (int i = 0; i < subscribed; i++)
        while (i < subscribed && subscriptions[i].fd == fd)
            subscriptions[i] = subscriptions[--subscribed];
    free(connections[fd].input);
    free(connections[fd].rest);
    memset(&connections[fd], 0, sizeof connections[fd]);
    close(fd);
}

static int refuse(int fd, unsigned char code)
{
    say(fd, (unsigned char[]){0x20, 3, 0, code, 0}, 5);
    end(fd);
    return 0;
}

static void copy(int fd, const unsigned char *packet, int size)
{
    struct connection *to = &connections[fd];
    if (to->left)
        return; /* QoS 0 to a receiver that does not read: dropped */
    int sent = (int)send(fd, packet, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 || sent == size)
        return;
    to->rest = realloc(to->rest, size - sent);
    memcpy(to->rest, packet + sent, size - sent);
    to->left = size - sent;
    to->sent = 0;
    watch(fd, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
}

static void send_rest(int fd)
{
    struct connection *to = &connections[fd];
    int sent = (int)send(fd, to->rest + to->sent, to->left, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0)
        to->sent += sent, to->left -= sent;
    if (!to->left)
        watch(fd, EPOLLIN, EPOLL_CTL_MOD);
}

static int matches(const struct subscription *to, const unsigned char *topic, int length)
{
    int is_tree = to->filter[to->length - 1] == '#', whole = is_tree ? to->length - 1 : to->length;
    return (is_tree ? length >= whole : length == whole) && !memcmp(to->filter, topic, whole);
}

static void fan_out(int fd, const unsigned char *packet, const unsigned char *body, int rest)
{
    static unsigned char made[INPUT_MAX];
    int topic = body[0] << 8 | body[1], qos = packet[0] >> 1 & 3, identifier = qos ? 2 : 0, size = rest - identifier;
    int at = 1;
    made[0] = 0x30;
    for (int left = size; at == 1 || left; left >>= 7)
        made[at++] = (left & 0x7F) | (left >> 7 ? 0x80 : 0);
    memcpy(made + at, body, 2 + topic);
    memcpy(made + at + 2 + topic, body + 2 + topic + identifier, size - 2 - topic);
    for (int i = 0; i < subscribed; i++)
        if (matches(&subscriptions[i], body + 2, topic))
            copy(subscriptions[i].fd, made, at + size);
    if (qos)
        say(fd, (unsigned char[]){0x40, 2, body[2 + topic], body[3 + topic]}, 4);
}

/* Return 0 if the connection has ended. */
static int let_in(int fd, const unsigned char *body)
{
    unsigned *failed = &failures[connections[fd].address & 255];
    int at = 10, has_name = body[7] & 0x80;
    at += 1 + body[at]; /* properties below 128 bytes */
    at += 2 + (body[at] << 8 | body[at + 1]);
    if (hasher < 0 || (has_name && body[at + 1] == 3 && !memcmp(body + at + 2, "ann", 3))) {
        say(fd, "\x20\x03\0\0\0", 5);
        return 1;
    }
    if (*failed >= FAILURES_MAX)
        return refuse(fd, 0x9F);
    if (waits == WAITING_MAX)
        return refuse(fd, 0x89);
    int last = (first_waiting + waits++) % WAITING_MAX;
    waiting[last].fd = fd;
    waiting[last].number = connections[fd].number;
    say(hasher, "", 1);
    return 1;
}

static void hashed(void)
{
    char answers[WAITING_MAX];
    for (ssize_t got = recv(hasher, answers, sizeof answers, MSG_DONTWAIT); got > 0; got--, waits--) {
        int fd = waiting[first_waiting].fd;
        if (connections[fd].number == waiting[first_waiting].number) {
            failures[connections[fd].address & 255]++;
            refuse(fd, 0x86);
        }
        first_waiting = (first_waiting + 1) % WAITING_MAX;
    }
}

static int take(int fd, const unsigned char *packet, int head, int rest)
{
    const unsigned char *body = packet + head;
    int at;
    switch (packet[0] >> 4) {
    case 1: /* CONNECT */
        return let_in(fd, body);
    case 3: /* PUBLISH */
        fan_out(fd, packet, body, rest);
        break;
    case 8: /* SUBSCRIBE */
        at = 3 + body[2];
        if (subscribed < SUBSCRIPTIONS_MAX && (body[at] << 8 | body[at + 1]) <= FILTER_MAX) {
            subscriptions[subscribed].length = body[at] << 8 | body[at + 1];
            memcpy(subscriptions[subscribed].filter, body + at + 2, subscriptions[subscribed].length);
            subscriptions[subscribed++].fd = fd;
        }
        say(fd, (unsigned char[]){0x90, 4, body[0], body[1], 0, 0}, 6);
        break;
    case 12: /* PINGREQ */
        say(fd, "\xd0\0", 2);
        break;
    case 14: /* DISCONNECT */
        end(fd);
        return 0;
    }
    return 1;
}

static void parse(int fd)
{
    struct connection *from = &connections[fd];
    int at = 0;
    while (from->filled - at >= 2) {
        int head = 1, rest = 0;
        do
            rest |= (from->input[at + head] & 0x7F) << 7 * (head - 1);
        while (from->input[at + head++] & 0x80 && head < 5 && at + head < from->filled);
        if (head + rest > INPUT_MAX) {
            end(fd);
            return;
        }
        if (from->filled - at < head + rest)
            break;
        if (!take(fd, from->input + at, head, rest))
            return;
        at += head + rest;
    }
    from->filled -= at;
    memmove(from->input, from->input + at, from->filled);
}

static void upgrade(int fd)
{
    static const char ACCEPTED[] = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                   "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";
    struct connection *from = &connections[fd];
    if (from->is_websocket == 2) {
        say(fd, "\x88\x02\x03\xf0", 4);
        end(fd);
    } else if (memmem(from->input, from->filled, "\r\n\r\n", 4)) {
        from->is_websocket = 2;
        from->filled = 0;
        say(fd, ACCEPTED, sizeof ACCEPTED - 1);
    }
}

static void begin(int listener, int is_websocket)
{
    struct sockaddr_in address;
    socklen_t size = sizeof address;
    int one = 1, fd = accept4(listener, (void *)&address, &size, SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (fd >= CONNECTIONS_MAX) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connections[fd].input = malloc(INPUT_MAX);
    connections[fd].number = ++numbers;
    connections[fd].address = ntohl(address.sin_addr.s_addr);
    connections[fd].is_websocket = is_websocket;
    watch(fd, EPOLLIN, EPOLL_CTL_ADD);
}

static int listen_to(void)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (void *)&address, size) || listen(listener, 4096))
        perror("listen"), exit(1);
    getsockname(listener, (void *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    watch(listener, EPOLLIN, EPOLL_CTL_ADD);
    return listener;
}

static void hash_by(char **program)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
        perror("socketpair"), exit(1);
    if (!fork()) {
        dup2(pair[1], 0);
        dup2(pair[1], 1);
        close(pair[0]);
        execvp(program[0], program);
        _exit(127);
    }
    close(pair[1]);
    hasher = pair[0];
    watch(hasher, EPOLLIN, EPOLL_CTL_ADD);
}

int main(int count, char **words)
{
    struct epoll_event events[EVENTS_MAX];
    poller = epoll_create1(EPOLL_CLOEXEC);
    int plain = listen_to(), websocket = listen_to();
    if (count > 1)
        hash_by(words + 1);
    for (;;) {
        int ready = epoll_wait(poller, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            struct connection *from = &connections[fd];
            if (fd == plain || fd == websocket) {
                begin(fd, fd == websocket);
            } else if (fd == hasher) {
                hashed();
            } else if (from->input) {
                if (events[i].events & EPOLLOUT)
                    send_rest(fd);
                if (!(events[i].events & ~EPOLLOUT))
                    continue;
                int got = (int)recv(fd, from->input + from->filled, INPUT_MAX - from->filled, MSG_DONTWAIT);
                if (got > 0) {
                    from->filled += got;
                    (from->is_websocket ? upgrade : parse)(fd);
                } else if (got == 0 || errno != EAGAIN) {
                    end(fd);
                }
            }
        }
    }
}
