/*
 * The least that durable messages can cost on this machine: an edge, a primary and backups in C, a process each.
 *
 * The edge reads PUBLISH (QoS 1) and sends what one pass brought to the primary in one write; the primary appends it to
 * its log, sends it to its backups, syncs, and replies when all of them have synced; then the edge sends PUBACK and the
 * message to its subscriber, whose PUBACKs ride with the next messages into the logs. So one sync on each copy for each
 * pass, as group commit has it, and nothing acknowledged before. No TLS, no queues, no partitions: not a broker. Knows
 * of MQTT 3.1.1 what `mqload -q 1` says with one subscriber per topic.
 *
 *   cc -O2 -std=c11 durable_relay.c -o relay && ./relay FOLDER COPIES      prints its port, then the processes' ids
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <signal.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 4096, TOPIC_MAX = 64, INPUT_MAX = 16384, EVENTS_MAX = 256, COPIES_MAX = 8, BATCH_MAX = 1 << 22 };

static struct {
    unsigned char topic[TOPIC_MAX];
    int length, subscriber;
} topics[CONNECTIONS_MAX]; /* open addressing */
static unsigned char input[CONNECTIONS_MAX][INPUT_MAX];
static int filled[CONNECTIONS_MAX];
static unsigned short next_identifier[CONNECTIONS_MAX];
static unsigned char batch[BATCH_MAX], acks[BATCH_MAX], held[BATCH_MAX];
static struct output {
    unsigned char bytes[INPUT_MAX];
    int filled;
} outputs[CONNECTIONS_MAX];
static int touched[CONNECTIONS_MAX], touched_count;
static size_t batched, acked, held_count;
static uint64_t batched_ever;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static void send_whole(int fd, const void *data, size_t length)
{
    while (length) {
        ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
        if (sent < 0)
            fail("send");
        data = (const char *)data + sent;
        length -= (size_t)sent;
    }
}

static void no_delay(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static int listen_here(struct sockaddr_in *address)
{
    socklen_t size = sizeof *address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (void *)address, size) || listen(listener, CONNECTIONS_MAX))
        fail("listen");
    getsockname(listener, (void *)address, &size);
    return listener;
}

static void tcp_pair(int ends[2]) /* a link as between two hosts, over loopback */
{
    struct sockaddr_in address;
    int listener = listen_here(&address);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (void *)&address, sizeof address) || (ends[1] = accept(listener, NULL, NULL)) < 0)
        fail("connect");
    close(listener);
    no_delay(ends[0]);
    no_delay(ends[1]);
}

static int open_log(const char *folder, int number)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/log-%d", folder, number);
    int log = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (log < 0)
        fail(path);
    return log;
}

/* A copy: what comes from `above` is appended, sent `below`, synced, and confirmed when all below have confirmed it. */
static void copy(const char *folder, int number, int above, const int *below, int backups)
{
    int log = open_log(folder, number), poller = epoll_create1(0);
    uint64_t synced = 0, told = 0, confirmed[COPIES_MAX] = {0};
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = COPIES_MAX}, events[COPIES_MAX + 1];
    epoll_ctl(poller, EPOLL_CTL_ADD, above, &event);
    for (int i = 0; i < backups; i++) {
        event.data.u32 = (uint32_t)i;
        epoll_ctl(poller, EPOLL_CTL_ADD, below[i], &event);
    }
    for (;;) {
        int count = epoll_wait(poller, events, COPIES_MAX + 1, -1);
        for (int i = 0; i < count; i++) {
            uint32_t who = events[i].data.u32;
            if (who < COPIES_MAX) {
                if (recv(below[who], &confirmed[who], sizeof confirmed[who], MSG_WAITALL) != sizeof confirmed[who])
                    exit(0);
                continue;
            }
            ssize_t got = recv(above, batch, BATCH_MAX, 0);
            if (got <= 0)
                exit(0);
            for (int to = 0; to < backups; to++)
                send_whole(below[to], batch, (size_t)got);
            if (write(log, batch, (size_t)got) != got || fdatasync(log))
                fail("log");
            synced += (uint64_t)got;
        }
        uint64_t all = synced;
        for (int i = 0; i < backups; i++)
            all = confirmed[i] < all ? confirmed[i] : all;
        if (all > told)
            send_whole(above, &all, sizeof all);
        told = all;
    }
}

static int slot_of(const unsigned char *topic, int length)
{
    unsigned slot = 5381;
    for (int i = 0; i < length; i++)
        slot = slot * 33 + topic[i];
    for (slot %= CONNECTIONS_MAX; topics[slot].length; slot = (slot + 1) % CONNECTIONS_MAX)
        if (topics[slot].length == length && !memcmp(topics[slot].topic, topic, (size_t)length))
            break;
    return (int)slot;
}

static void put(int fd, const void *bytes, int length)
{
    struct output *output = &outputs[fd];
    if (output->filled + length > INPUT_MAX) {
        send_whole(fd, output->bytes, (size_t)output->filled);
        output->filled = 0;
    }
    if (!output->filled)
        touched[touched_count++] = fd;
    memcpy(output->bytes + output->filled, bytes, (size_t)length);
    output->filled += length;
}

struct record { /* of the log: a message of a publisher; behind it its bytes */
    uint32_t length, publisher;
};

static void add(unsigned char *to, size_t *count, const void *bytes, size_t length)
{
    if (*count + length > BATCH_MAX) {
        fputs("more under way than a batch holds\n", stderr);
        exit(1);
    }
    memcpy(to + *count, bytes, length);
    *count += length;
}

static void take(int fd, unsigned char *packet, int head, int rest)
{
    unsigned char *body = packet + head;
    struct record record = {(uint32_t)(head + rest), (uint32_t)fd};
    int length, slot;
    switch (packet[0] >> 4) {
    case 1: /* CONNECT */
        put(fd, "\x20\x02\0\0", 4);
        break;
    case 3: /* PUBLISH */
        add(batch, &batched, &record, sizeof record);
        add(batch, &batched, packet, record.length);
        break;
    case 4: /* PUBACK */
        add(acks, &acked, body, 2);
        break;
    case 8: /* SUBSCRIBE */
        length = body[2] << 8 | body[3];
        if (length > TOPIC_MAX)
            break;
        slot = slot_of(body + 4, length);
        memcpy(topics[slot].topic, body + 4, (size_t)length);
        topics[slot].length = length;
        topics[slot].subscriber = fd;
        put(fd, (unsigned char[]){0x90, 3, body[0], body[1], 1}, 5);
        break;
    case 12: /* PINGREQ */
        put(fd, "\xd0\0", 2);
        break;
    }
}

static void parse(int fd)
{
    int at = 0, head, rest;
    while (filled[fd] - at >= 2) {
        unsigned char *packet = input[fd] + at;
        head = packet[1] & 0x80 ? 3 : 2;
        if (filled[fd] - at < head)
            break;
        rest = head == 3 ? (packet[1] & 0x7F) | packet[2] << 7 : packet[1];
        if (filled[fd] - at < head + rest)
            break;
        take(fd, packet, head, rest);
        at += head + rest;
    }
    filled[fd] -= at;
    memmove(input[fd], input[fd] + at, (size_t)filled[fd]);
}

static uint64_t durable, released; /* bytes of the log; bytes whose messages were acknowledged */

/* Acknowledge and deliver messages that are durable. `held` is the log from `released` on. */
static void release(void)
{
    size_t at = 0;
    while (released + at < durable) {
        struct record record;
        memcpy(&record, held + at, sizeof record);
        unsigned char *packet = held + at + sizeof record;
        at += sizeof record + record.length;
        if (record.publisher == UINT32_MAX)
            continue; /* acknowledgements */
        int head = packet[1] & 0x80 ? 3 : 2, length = packet[head] << 8 | packet[head + 1];
        unsigned char *identifier = packet + head + 2 + length;
        put((int)record.publisher, (unsigned char[]){0x40, 2, identifier[0], identifier[1]}, 4);
        int slot = slot_of(packet + head + 2, length);
        if (topics[slot].length) {
            int to = topics[slot].subscriber;
            unsigned short number = ++next_identifier[to] ? next_identifier[to] : ++next_identifier[to];
            identifier[0] = (unsigned char)(number >> 8);
            identifier[1] = (unsigned char)number;
            put(to, packet, (int)record.length);
        }
    }
    released += at;
    held_count -= at;
    memmove(held, held + at, held_count);
}

static void send_batch(int primary)
{
    if (!batched)
        return;
    if (acked) {
        struct record record = {(uint32_t)acked, UINT32_MAX};
        add(batch, &batched, &record, sizeof record);
        add(batch, &batched, acks, acked);
        acked = 0;
    }
    add(held, &held_count, batch, batched);
    send_whole(primary, batch, batched);
    batched_ever += batched;
    batched = 0;
}

static void edge(int listener, int primary)
{
    int poller = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS_MAX];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    event.data.fd = primary;
    epoll_ctl(poller, EPOLL_CTL_ADD, primary, &event);
    for (;;) {
        int count = epoll_wait(poller, events, EVENTS_MAX, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                fd = accept(listener, NULL, NULL);
                if (fd < 0 || fd >= CONNECTIONS_MAX)
                    fail("accept");
                no_delay(fd);
                filled[fd] = outputs[fd].filled = 0;
                event.data.fd = fd;
                epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
                continue;
            }
            if (fd == primary) {
                if (recv(primary, &durable, sizeof durable, MSG_WAITALL) != sizeof durable)
                    fail("primary");
                release();
                continue;
            }
            ssize_t got = recv(fd, input[fd] + filled[fd], (size_t)(INPUT_MAX - filled[fd]), MSG_DONTWAIT);
            if (got > 0) {
                filled[fd] += (int)got;
                parse(fd);
            } else if (got == 0 || errno != EAGAIN) {
                close(fd);
                outputs[fd].filled = 0;
            }
        }
        send_batch(primary);
        for (int i = 0; i < touched_count; i++) {
            struct output *output = &outputs[touched[i]];
            if (output->filled)
                send(touched[i], output->bytes, (size_t)output->filled, MSG_NOSIGNAL);
            output->filled = 0;
        }
        touched_count = 0;
    }
}

int main(int argc, char **argv)
{
    int copies = argc == 3 ? atoi(argv[2]) : 0, links[COPIES_MAX], ends[2], ids[COPIES_MAX + 1];
    if (copies < 1 || copies > COPIES_MAX)
        return fputs("FOLDER COPIES, of 1 to 8\n", stderr), 2;
    for (int i = copies - 1; i >= 0; i--) { /* backups first; the primary, number 0, has the links to them */
        tcp_pair(ends);
        ids[i] = fork();
        if (ids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(ends[0]);
            copy(argv[1], i, ends[1], links + 1, i ? 0 : copies - 1);
        }
        close(ends[1]);
        links[i] = ends[0];
    }
    struct sockaddr_in address;
    int listener = listen_here(&address);
    printf("%d %d", ntohs(address.sin_port), getpid());
    for (int i = 0; i < copies; i++)
        printf(" %d", ids[i]);
    printf("\n");
    fflush(stdout);
    edge(listener, links[0]);
}
