/*
 * The least that a relay of single messages can cost on this machine: one epoll_wait, one recv, one send, one C process.
 * And the least that a CONNECT can, or the first message on a topic: with the argument `claims` or `routes` each is asked
 * of another thread, which keeps who holds what; the questions of a turn go together.
 *
 * Knows what `mqload` says over one connection per client and no more: CONNACK, SUBACK for one filter without wildcards,
 * QoS 0 with one subscriber per topic, PINGRESP. No limits, no checks, no TLS, no sessions: not a broker.
 *
 *   cc -O2 -std=c11 -pthread relay.c -o relay && ./relay [claims | routes]      prints its port
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 32768, TOPIC_MAX = 64, INPUT_MAX = 4096, EVENTS_MAX = 64, QUESTIONS_MAX = 4096 };

static struct {
    unsigned char topic[TOPIC_MAX];
    int length, subscriber, known, waits;
    unsigned char waiting[TOPIC_MAX * 2]; /* the first message, while the topic is asked for */
} topics[CONNECTIONS_MAX]; /* open addressing */

struct question {
    int about, opens;
}; /* a connection, or a slot of topics; as the answer: it may go on */

static struct question questions[QUESTIONS_MAX];
static int asked, asks_claims, asks_routes, holder[2]; /* questions of this turn; what is asked; a pair of sockets */

static void ask(int about, int opens)
{
    questions[asked++] = (struct question){about, opens};
}

static void *hold(void *unused)
{
    static struct question taken[QUESTIONS_MAX];
    static int held[CONNECTIONS_MAX];
    for (;;) {
        ssize_t got = recv(holder[1], taken, sizeof taken, 0);
        for (int i = 0; i < got / (int)sizeof *taken; i++) {
            held[taken[i].about] = taken[i].opens;
            taken[i].opens = held[taken[i].about];
        }
        send(holder[1], taken, got, MSG_NOSIGNAL);
    }
    return unused;
}

static void answered(void)
{
    static struct question answers[QUESTIONS_MAX];
    ssize_t got = recv(holder[0], answers, sizeof answers, MSG_DONTWAIT);
    for (int i = 0; i < got / (int)sizeof *answers; i++) {
        int about = answers[i].about;
        if (asks_routes) {
            topics[about].known = 1;
            send(topics[about].subscriber, topics[about].waiting, topics[about].waits, MSG_NOSIGNAL | MSG_DONTWAIT);
        } else if (answers[i].opens)
            send(about, "\x20\x02\0\0", 4, MSG_NOSIGNAL);
    }
}

static unsigned char input[CONNECTIONS_MAX][INPUT_MAX];
static int filled[CONNECTIONS_MAX];

static int slot_of(const unsigned char *topic, int length)
{
    unsigned slot = 5381;
    for (int i = 0; i < length; i++)
        slot = slot * 33 + topic[i];
    for (slot %= CONNECTIONS_MAX; topics[slot].length; slot = (slot + 1) % CONNECTIONS_MAX)
        if (topics[slot].length == length && !memcmp(topics[slot].topic, topic, length))
            break;
    return (int)slot;
}

static void take(int fd, const unsigned char *packet, int head, int rest)
{
    const unsigned char *body = packet + head;
    int length, slot;
    switch (packet[0] >> 4) {
    case 1: /* CONNECT */
        if (asks_claims)
            ask(fd, 1);
        else
            send(fd, "\x20\x02\0\0", 4, MSG_NOSIGNAL);
        break;
    case 3: /* PUBLISH */
        slot = slot_of(body + 2, body[0] << 8 | body[1]);
        if (!topics[slot].length)
            break;
        if (asks_routes && !topics[slot].known) {
            if (topics[slot].waits || head + rest > (int)sizeof topics[slot].waiting)
                break;
            memcpy(topics[slot].waiting, packet, topics[slot].waits = head + rest);
            ask(slot, 1);
        } else
            send(topics[slot].subscriber, packet, head + rest, MSG_NOSIGNAL | MSG_DONTWAIT);
        break;
    case 8: /* SUBSCRIBE */
        length = body[2] << 8 | body[3];
        if (length > TOPIC_MAX)
            break;
        slot = slot_of(body + 4, length);
        memcpy(topics[slot].topic, body + 4, length);
        topics[slot].length = length;
        topics[slot].subscriber = fd;
        send(fd, (unsigned char[]){0x90, 3, body[0], body[1], 0}, 5, MSG_NOSIGNAL);
        break;
    case 12: /* PINGREQ */
        send(fd, "\xd0\0", 2, MSG_NOSIGNAL);
        break;
    }
}

static void parse(int fd)
{
    int at = 0, head, rest;
    while (filled[fd] - at >= 3) {
        const unsigned char *packet = input[fd] + at;
        head = packet[1] & 0x80 ? 3 : 2;
        rest = head == 3 ? (packet[1] & 0x7F) | packet[2] << 7 : packet[1];
        if (filled[fd] - at < head + rest)
            break;
        take(fd, packet, head, rest);
        at += head + rest;
    }
    filled[fd] -= at;
    memmove(input[fd], input[fd] + at, filled[fd]);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int listener = socket(AF_INET, SOCK_STREAM, 0), poller = epoll_create1(0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS_MAX];
    if (bind(listener, (void *)&address, size) || listen(listener, CONNECTIONS_MAX))
        return perror("listen"), 1;
    getsockname(listener, (void *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    asks_claims = argc > 1 && !strcmp(argv[1], "claims");
    asks_routes = argc > 1 && !strcmp(argv[1], "routes");
    if (asks_claims || asks_routes) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, holder) || pthread_create(&thread, NULL, hold, NULL))
            return perror("thread"), 1;
        event.data.fd = holder[0];
        epoll_ctl(poller, EPOLL_CTL_ADD, holder[0], &event);
    }
    for (;;) {
        if (asked)
            send(holder[0], questions, asked * sizeof *questions, MSG_NOSIGNAL);
        asked = 0;
        int count = epoll_wait(poller, events, EVENTS_MAX, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (holder[0] && fd == holder[0]) {
                answered();
                continue;
            }
            if (fd == listener) {
                fd = accept(listener, NULL, NULL);
                if (fd < 0 || fd >= CONNECTIONS_MAX)
                    return perror("accept"), 1;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                filled[fd] = 0;
                event.data.fd = fd;
                epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
                continue;
            }
            int got = (int)recv(fd, input[fd] + filled[fd], INPUT_MAX - filled[fd], MSG_DONTWAIT);
            if (got > 0) {
                filled[fd] += got;
                parse(fd);
            } else if (got == 0 || errno != EAGAIN) {
                if (asks_claims)
                    ask(fd, 0);
                close(fd);
            }
        }
    }
}
