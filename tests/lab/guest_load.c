/* What a guest of the lab runs when it is told to serve or to stress, as one static program.
 *
 *   guest_load serve PORT    HTTP/1.1: GET /WORK does WORK thousands of steps of arithmetic and answers "ok". One thread,
 *                            so requests queue, which is what makes latencies grow before the CPU is full.
 *   guest_load stress PORT   One line per connection, answered by "ok" or "error": "cpu THREADS PERCENT" (each thread
 *                            burns that share of every 20 ms), "disk" (writes past the page cache), "quiet" (stop).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLIENTS = 64, TEXT = 2048, PERIOD_NS = 20000000, BLOCK = 1 << 16, BLOCKS = 1024 };

static int listen_on(int port) {
    int one = 1, server = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(server, (struct sockaddr *)&at, sizeof at) != 0 || listen(server, CLIENTS) != 0) {
        perror("listen");
        exit(1);
    }
    return server;
}

static void work(long thousands) {
    uint64_t x = 88172645463325252u;
    for (long step = thousands * 1000; step > 0; step--) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    __asm__ volatile("" : : "r"(x)); /* the compiler must not leave it out */
}

static void serve(int port) {
    static char text[CLIENTS][TEXT];
    static size_t length[CLIENTS];
    struct pollfd files[CLIENTS + 1] = {{.fd = listen_on(port), .events = POLLIN}};
    const char *answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n";
    int one = 1;
    for (int i = 1; i <= CLIENTS; i++) files[i] = (struct pollfd){.fd = -1, .events = POLLIN};
    for (;;) {
        poll(files, CLIENTS + 1, -1);
        for (int i = 1; i <= CLIENTS; i++) {
            if (files[i].fd < 0 || !files[i].revents) continue;
            char *mine = text[i - 1];
            size_t *used = &length[i - 1];
            ssize_t got = read(files[i].fd, mine + *used, TEXT - 1 - *used);
            if (got > 0) {
                mine[*used += got] = 0;
                if (!strstr(mine, "\r\n\r\n") && *used < TEXT - 1) continue;
                long thousands = 0;
                sscanf(mine, "GET /%ld", &thousands);
                work(thousands);
                *used = 0;
                if (write(files[i].fd, answer, strlen(answer)) > 0) continue;
            }
            close(files[i].fd);
            files[i].fd = -1;
            *used = 0;
        }
        for (int i = 1; files[0].revents && i <= CLIENTS; i++) {
            if (files[i].fd >= 0) continue;
            files[i].fd = accept(files[0].fd, NULL, NULL);
            setsockopt(files[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            break;
        }
    }
}

static volatile int generation; /* threads of an older one end */
static volatile int burn_percent;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void *burn(void *argument) {
    int mine = (int)(intptr_t)argument;
    while (mine == generation) {
        int64_t start = now_ns(), busy_ns = (int64_t)PERIOD_NS / 100 * burn_percent;
        while (now_ns() - start < busy_ns) work(20);
        int64_t rest = start + PERIOD_NS - now_ns();
        if (rest > 0 && burn_percent < 100) nanosleep(&(struct timespec){.tv_nsec = rest % 1000000000}, NULL);
    }
    return NULL;
}

static void *write_disk(void *argument) {
    int mine = (int)(intptr_t)argument, disk = open("/dev/vda", O_WRONLY | O_DIRECT);
    void *block = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; mine == generation && disk >= 0; i = (i + 1) % BLOCKS)
        if (pwrite(disk, block, BLOCK, (off_t)i * BLOCK) != BLOCK) break;
    munmap(block, BLOCK);
    close(disk);
    return NULL;
}

static int obey(const char *line) {
    int threads = 1, percent = 100;
    void *(*what)(void *) = NULL;
    if (sscanf(line, "cpu %d %d", &threads, &percent) >= 1 && threads > 0 && threads <= 64) what = burn;
    else if (strncmp(line, "disk", 4) == 0) what = write_disk;
    else if (strncmp(line, "quiet", 5) != 0) return -1;
    generation++;
    burn_percent = percent;
    for (int i = 0; what && i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, what, (void *)(intptr_t)generation) != 0) return -1;
        pthread_detach(thread);
    }
    return 0;
}

static void stress(int port) {
    int server = listen_on(port);
    for (;;) {
        char line[TEXT] = "";
        int client = accept(server, NULL, NULL);
        ssize_t got = read(client, line, TEXT - 1);
        const char *answer = got > 0 && obey(line) == 0 ? "ok\n" : "error\n";
        if (write(client, answer, strlen(answer)) < 0) perror("write");
        close(client);
    }
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(arguments[1], "serve") == 0) serve(atoi(arguments[2]));
    stress(atoi(arguments[2]));
}
