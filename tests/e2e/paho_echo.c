/* A client of paho C that publishes to itself: prints how many messages came back and the longest pause between two.
 *
 * Usage: paho_echo URI COUNT SECONDS. Exit code 0: all came within the time.
 */
#define _POSIX_C_SOURCE 200809L
#include <MQTTAsync.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static volatile int connected, subscribed, failed, received;
static volatile double last_s, longest_s;

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void rest(void)
{
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
}

static void on_connected(void *flag, MQTTAsync_successData *data)
{
    (void)data;
    *(volatile int *)flag = 1;
}

static void on_failed(void *context, MQTTAsync_failureData *data)
{
    (void)context;
    (void)data;
    failed = 1;
}

static int on_message(void *context, char *topic, int topic_bytes, MQTTAsync_message *message)
{
    double now = now_s();
    (void)context;
    (void)topic_bytes;
    if (received > 0 && now - last_s > longest_s)
        longest_s = now - last_s;
    last_s = now;
    received++;
    MQTTAsync_freeMessage(&message);
    MQTTAsync_free(topic);
    return 1;
}

int main(int argc, char **argv)
{
    MQTTAsync client;
    MQTTAsync_connectOptions connecting = MQTTAsync_connectOptions_initializer_ws;
    MQTTAsync_responseOptions subscribing = MQTTAsync_responseOptions_initializer;
    MQTTAsync_message message = MQTTAsync_message_initializer;
    int count = argc > 3 ? atoi(argv[2]) : 0;
    double deadline = now_s() + (argc > 3 ? atof(argv[3]) : 0);

    if (count == 0 || MQTTAsync_create(&client, argv[1], "paho-echo", MQTTCLIENT_PERSISTENCE_NONE, NULL))
        return 2;
    MQTTAsync_setCallbacks(client, NULL, NULL, on_message, NULL);
    connecting.keepAliveInterval = 60; /* no PINGRESP wakes it while the test runs */
    connecting.maxInflight = 100;
    connecting.context = (void *)&connected;
    connecting.onSuccess = on_connected;
    connecting.onFailure = on_failed;
    MQTTAsync_connect(client, &connecting);
    while (!connected && !failed && now_s() < deadline)
        rest();
    subscribing.context = (void *)&subscribed;
    subscribing.onSuccess = on_connected;
    subscribing.onFailure = on_failed;
    MQTTAsync_subscribe(client, "paho/echo", 2, &subscribing);
    while (!subscribed && !failed && now_s() < deadline)
        rest();
    message.payload = "0123456789";
    message.payloadlen = 10;
    for (int sent = 0; sent < count && !failed && now_s() < deadline;) {
        message.qos = sent % 3;
        if (MQTTAsync_sendMessage(client, "paho/echo", &message, NULL) == MQTTASYNC_SUCCESS)
            sent++;
        else
            rest(); /* as many are in flight as may be */
    }
    while (received < count && !failed && now_s() < deadline)
        rest();
    printf("received %d longest pause %.2f failed %d\n", received, longest_s, failed);
    return received == count && !failed ? 0 : 1;
}
