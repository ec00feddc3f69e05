/*
 * Strangers, at the rendezvous and at the ranks' own ports while a session forms: whatever they say or leave unsaid, however
 * many they are and however few descriptors there are, they are turned away, and the ranks meet and compute.
 */
#include "collective_door.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

static const char *program;

/* --- What strangers say --- */

typedef struct words { const char *name; const void *bytes; size_t count; } words;

static uint8_t noise[65536];

static const words speeches[] = {
#define TEXT(text) text, sizeof text - 1
    { "a browser", TEXT("GET / HTTP/1.0\r\n\r\n") },
    { "a TLS client", TEXT("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03") },
    { "a shell", TEXT("SSH-2.0-x\r\n") },
    { "a NUL", TEXT("\0") },
    { "half the magic", TEXT("LU\r\n") },
    { "noise", noise, sizeof noise },
#undef TEXT
};
enum { SPEECHES = sizeof speeches / sizeof *speeches };

static void make_noise(void)
{
    uint64_t state = 20261130;
    for (size_t i = 0; i < sizeof noise; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        noise[i] = (uint8_t)(state >> 56);
    }
}

/* First words that differ from a rank's in one thing. */
enum { VERSION, KIND, LENGTH, SESSION, SIZE, RANK, LIES };

static size_t lie(int about, bool at_rendezvous, const char *session, int size, uint8_t bytes[LUDA_FRAME_BYTES + 2])
{
    luda_frame frame = { .kind = at_rendezvous ? LUDA_FRAME_JOIN : LUDA_FRAME_HELLO,
                         .payload = at_rendezvous ? 2 : 0,
                         .rank = (uint32_t)size - 1,
                         .size = (uint32_t)size };
    luda__session_parse(session, frame.session);
    frame.kind = about == KIND ? LUDA_FRAME_DATA : frame.kind;
    frame.payload = about == LENGTH ? (uint64_t)1 << 60 : frame.payload;
    frame.session[15] ^= about == SESSION;
    frame.size += about == SIZE;
    frame.rank = about == RANK ? UINT32_MAX : frame.rank;
    memset(bytes, 0, LUDA_FRAME_BYTES + 2);
    luda__frame_write(&frame, bytes);
    bytes[4] += about == VERSION;
    return at_rendezvous ? LUDA_FRAME_BYTES + 2 : LUDA_FRAME_BYTES;
}

/* Everything that is wrong, once; each is dropped, and a rank that lies to the rendezvous hears about what. */
static void visit(int port, bool at_rendezvous, const char *session, int size)
{
    static const char *const answers[LIES] = { "version", "version", "version", "another session", "expects", "rank 4294967295" };
    uint8_t bytes[LUDA_FRAME_BYTES + 2];
    char why[WORDS];
    int fd;
    for (int i = 0; i < SPEECHES; i++) {
        fd = dial(port);
        send(fd, speeches[i].bytes, speeches[i].count, MSG_NOSIGNAL);
        EXPECT(dropped(fd, why));
        close(fd);
    }
    for (int about = 0; about < LIES; about++) {
        size_t count = lie(about, at_rendezvous, session, size, bytes);
        fd = dial(port);
        EXPECT(send(fd, bytes, count, MSG_NOSIGNAL) == (ssize_t)count);
        EXPECT(dropped(fd, why) && (!at_rendezvous || strstr(why, answers[about])));
        close(fd);
    }
    /* The right words up to a wrong session, one byte at a time. */
    size_t count = lie(SESSION, at_rendezvous, session, size, bytes);
    fd = dial(port);
    for (size_t i = 0; i < count; i++) {
        EXPECT(send(fd, bytes + i, 1, MSG_NOSIGNAL) == 1);
        usleep(200);
    }
    EXPECT(dropped(fd, why));
    close(fd);
    close(dial(port));
}

/* --- Crowds --- */

/* Sanitizers keep what was freed. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { MOST_KIB = 512 << 10 };
#else
enum { MOST_KIB = 16 << 10 };
#endif
enum { CROWD = 1000 };

static void open_crowd(int port, int *crowd, int count)
{
    for (int i = 0; i < count; i++) {
        crowd[i] = dial(port);
        if (i % 3 == 0)
            send(crowd[i], "L", 1, MSG_NOSIGNAL);
    }
}

static void close_crowd(int *crowd, int count)
{
    for (int i = 0; i < count; i++)
        if (crowd[i] >= 0)
            close(crowd[i]);
}

static int open_descriptors(void)
{
    struct rlimit limit;
    int count = 0;
    getrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 0; fd < (int)limit.rlim_cur; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static long resident_kib(void)
{
    long total, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &total, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void ranks_join(const luda_rendezvous *home, int size)
{
    applicant a[APPLICANTS];
    for (int r = 0; r < size; r++)
        a[r] = (applicant){
            .address = luda_rendezvous_address(home), .session = luda_rendezvous_session(home), .rank = r, .size = size
        };
    apply_all(a, size);
    for (int r = 0; r < size; r++) {
        EXPECT(in_with_sum(&a[r]));
        if (!in_with_sum(&a[r]))
            printf("rank %d of %d: %s\n", r, size, a[r].text);
    }
}

static void test_each(void)
{
    luda_rendezvous *home;
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, 2, NULL, &home));
    visit(port_of(home), true, luda_rendezvous_session(home), 2);
    ranks_join(home, 2);
    luda_rendezvous_release(home);
}

/* A thousand at once that say nothing, or one byte; a few descriptors and a little memory are spent on them. */
static void test_crowd(void)
{
    luda_rendezvous *home;
    int crowd[CROWD], before, after;
    long memory;
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, 3, NULL, &home));
    before = open_descriptors();
    memory = resident_kib();
    open_crowd(port_of(home), crowd, CROWD);
    ranks_join(home, 3);
    after = open_descriptors();
    EXPECT(after - before <= CROWD + 256 + 16);
    EXPECT(resident_kib() - memory < MOST_KIB);
    close_crowd(crowd, CROWD);
    luda_rendezvous_release(home);
}

/* Ten thousand, one after another, while ranks join. */
static void test_procession(void)
{
    luda_rendezvous *home;
    pthread_t threads[2];
    applicant a[2];
    int knocked = 0;
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, 2, NULL, &home));
    for (int r = 0; r < 2; r++)
        a[r] = (applicant){ .address = luda_rendezvous_address(home), .session = luda_rendezvous_session(home),
                            .rank = r, .size = 2, .delay_ms = 20 + 60 * r };
    start_applying(threads, a, 2);
    for (int i = 0; i < 10000; i++) {
        int fd = dial(port_of(home));
        knocked += fd >= 0;
        if (i % 4)
            send(fd, speeches[i % SPEECHES].bytes, speeches[i % SPEECHES].count < 99 ? speeches[i % SPEECHES].count : 99,
                 MSG_NOSIGNAL);
        close(fd);
    }
    end_applying(threads, a, 2);
    EXPECT(knocked == 10000);
    EXPECT(in_with_sum(&a[0]) && in_with_sum(&a[1]));
    luda_rendezvous_release(home);
}

/* New silent connections all the time, more than are kept: also the ranks are pushed out now and then, and come again. */
typedef struct flood { int port; _Atomic bool stop; } flood;

static void *run_flood(void *opaque)
{
    flood *f = opaque;
    int crowd[CROWD];
    for (int i = 0; i < CROWD; i++)
        crowd[i] = -1;
    for (int i = 0; !f->stop; i = (i + 1) % CROWD) {
        if (crowd[i] >= 0)
            close(crowd[i]);
        crowd[i] = dial(f->port);
    }
    close_crowd(crowd, CROWD);
    return NULL;
}

static void test_flood(void)
{
    luda_rendezvous *home;
    pthread_t thread;
    flood f = { 0 };
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, 4, NULL, &home));
    f.port = port_of(home);
    pthread_create(&thread, NULL, run_flood, &f);
    pause_ms(100);
    ranks_join(home, 4);
    f.stop = true;
    pthread_join(thread, NULL);
    luda_rendezvous_release(home);
}

/* --- At the ranks' own ports --- */

/* Ports of this process that listen, other than one. */
static int listening(int but, int *ports, int most)
{
    int count = 0;
    for (int fd = 3; fd < 4096; fd++) {
        struct sockaddr_in a = { 0 };
        socklen_t length = sizeof a, size = sizeof(int);
        int listens = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens &&
            getsockname(fd, (struct sockaddr *)&a, &length) == 0 && ntohs(a.sin_port) != but && count < most)
            ports[count++] = ntohs(a.sin_port);
    }
    return count;
}

/* Ranks 0 and 1 wait for rank 2; strangers of every kind, and 1200 silent ones at each of the two, come first. */
static void test_at_ranks(void)
{
    enum { SILENT = 600 };
    luda_rendezvous *home;
    pthread_t threads[3], visitors[2];
    applicant a[3];
    flood floods[2] = { 0 };
    int ports[4], crowd[2][SILENT], count = 0;
    double end = luda__now() + 10;
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, 3, NULL, &home));
    for (int r = 0; r < 3; r++)
        a[r] = (applicant){
            .address = luda_rendezvous_address(home), .session = luda_rendezvous_session(home), .rank = r, .size = 3
        };
    start_applying(threads, a, 2);
    while ((count = listening(port_of(home), ports, 4)) < 2 && luda__now() < end)
        pause_ms(5);
    EXPECT(count == 2);
    for (int r = 0; r < 2; r++) {
        uint8_t bytes[LUDA_FRAME_BYTES + 2];
        open_crowd(ports[r], crowd[r], SILENT);
        for (int about = 0; about < LIES; about++) {
            size_t n = lie(about, false, luda_rendezvous_session(home), 3, bytes);
            send(crowd[r][SILENT - 1 - about], bytes, n, MSG_NOSIGNAL);
        }
        floods[r].port = ports[r];
        pthread_create(&visitors[r], NULL, run_flood, &floods[r]);
    }
    pause_ms(50);
    start_applying(&threads[2], &a[2], 1);
    for (int r = 0; r < 3; r++)
        end_applying(&threads[r], &a[r], 1);
    for (int r = 0; r < 3; r++) {
        EXPECT(in_with_sum(&a[r]));
        if (!in_with_sum(&a[r]))
            printf("rank %d among strangers: %s\n", r, a[r].text);
    }
    /* The group stands: its ports are closed. */
    EXPECT(listening(port_of(home), ports, 4) == 0);
    for (int r = 0; r < 2; r++) {
        floods[r].stop = true;
        pthread_join(visitors[r], NULL);
        close_crowd(crowd[r], SILENT);
    }
    luda_rendezvous_release(home);
}

/* A rank that waits for another's connections hears strangers, and drops them, before that one comes. */
static void test_waiting_rank(void)
{
    uint8_t bytes[LUDA_FRAME_BYTES + 2], answer[LUDA_FRAME_BYTES + 2 * LUDA_ADDRESS_BYTES];
    luda_rendezvous *home;
    luda_frame frame = { .kind = LUDA_FRAME_JOIN, .payload = 2, .rank = 1, .size = 2 };
    pthread_t thread;
    applicant a;
    int fd, port;
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, 2, NULL, &home));
    a = (applicant){
        .address = luda_rendezvous_address(home), .session = luda_rendezvous_session(home), .size = 2, .timeout = 4
    };
    start_applying(&thread, &a, 1);
    while (luda_rendezvous_missing(home, NULL, 0) > 1)
        pause_ms(2);
    /* This test is rank 1 up to here, and never connects. */
    luda__session_parse(a.session, frame.session);
    luda__frame_write(&frame, bytes);
    bytes[LUDA_FRAME_BYTES] = bytes[LUDA_FRAME_BYTES + 1] = 1;
    fd = dial(port_of(home));
    EXPECT(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) == sizeof bytes);
    EXPECT(recv(fd, answer, sizeof answer, MSG_WAITALL) == sizeof answer);
    port = answer[LUDA_FRAME_BYTES + 17] | answer[LUDA_FRAME_BYTES + 18] << 8;
    visit(port, false, a.session, 2);
    close(fd);
    end_applying(&thread, &a, 1);
    EXPECT(a.status == LUDA_ETIMEOUT && strstr(a.text, "rank 1 did not connect"));
    luda_rendezvous_release(home);
}

/* --- Without descriptors --- */

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void limit_descriptors(int more)
{
    int fd = dup(0);
    struct rlimit limit = { (rlim_t)(fd + more), (rlim_t)(fd + more) };
    close(fd);
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/*
 * A process of its own with few descriptors: serves, or is rank 0 of 2. It writes a line about where, and reads one byte
 * when strangers wait before it. `none`: it has no descriptor at all for a while.
 */
static int run_poor(const char *role, const char *address, const char *session)
{
    bool none = strcmp(role, "none") == 0;
    luda_rendezvous *home = NULL;
    applicant a = { .address = address, .session = session, .size = 2 };
    pthread_t thread;
    char byte;
    int taken[64], count = 0, port = 0;
    double before;
    if (strcmp(role, "rank") == 0) {
        limit_descriptors(24);
        start_applying(&thread, &a, 1);
        while (listening(0, &port, 1) == 0)
            pause_ms(2);
        dprintf(1, "127.0.0.1:%d -\n", port);
        end_applying(&thread, &a, 1);
        EXPECT(in_with_sum(&a));
        EXPECT(cpu_seconds() < 3);
        return failed != 0;
    }
    limit_descriptors(24);
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, 2, NULL, &home));
    while (none && count < 64 && (taken[count] = dup(0)) >= 0)
        count++;
    dprintf(1, "%s %s\n", luda_rendezvous_address(home), luda_rendezvous_session(home));
    EXPECT(read(0, &byte, 1) == 1);
    before = cpu_seconds();
    pause_ms(500);
    EXPECT(cpu_seconds() - before < 0.2);
    while (count > 0)
        close(taken[--count]);
    EXPECT(read(0, &byte, 1) == 1);
    luda_rendezvous_release(home);
    return failed != 0;
}

static pid_t start_poor(const char *role, const char *address, const char *session, int pipes[2])
{
    int to[2], from[2];
    pid_t child;
    EXPECT(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    child = fork();
    if (child == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        execl(program, program, role, address, session, (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    pipes[0] = from[0];
    pipes[1] = to[1];
    return child;
}

static void expect_content(pid_t child, int pipes[2])
{
    char bytes[1024];
    ssize_t n;
    int status;
    while ((n = read(pipes[0], bytes, sizeof bytes)) > 0)
        fwrite(bytes, 1, (size_t)n, stdout);
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(pipes[0]);
    close(pipes[1]);
}

static void test_poor_server(const char *role)
{
    enum { POOR_CROWD = 300 };
    char line[160] = "", address[81], session[41];
    int pipes[2], crowd[POOR_CROWD];
    pid_t child = start_poor(role, "-", "-", pipes);
    EXPECT(read(pipes[0], line, sizeof line - 1) > 0 && sscanf(line, "%80s %40s", address, session) == 2);
    open_crowd(atoi(strrchr(address, ':') + 1), crowd, POOR_CROWD);
    applicant a[] = { { .address = address, .session = session, .rank = 0, .size = 2 },
                      { .address = address, .session = session, .rank = 1, .size = 2 } };
    pthread_t threads[2];
    start_applying(threads, a, 2);
    EXPECT(write(pipes[1], "!", 1) == 1);
    end_applying(threads, a, 2);
    EXPECT(in_with_sum(&a[0]) && in_with_sum(&a[1]));
    EXPECT(write(pipes[1], "!", 1) == 1);
    expect_content(child, pipes);
    close_crowd(crowd, POOR_CROWD);
}

static void test_poor_rank(void)
{
    enum { POOR_CROWD = 300 };
    char line[160] = "";
    int pipes[2], crowd[POOR_CROWD];
    luda_rendezvous *home;
    pid_t child;
    EXPECT_OK(luda_rendezvous_new(NULL, NULL, 2, NULL, &home));
    child = start_poor("rank", luda_rendezvous_address(home), luda_rendezvous_session(home), pipes);
    EXPECT(read(pipes[0], line, sizeof line - 1) > 0 && strchr(line, ':'));
    open_crowd(atoi(strchr(line, ':') + 1), crowd, POOR_CROWD);
    applicant a = {
        .address = luda_rendezvous_address(home), .session = luda_rendezvous_session(home), .rank = 1, .size = 2
    };
    apply_all(&a, 1);
    EXPECT(in_with_sum(&a));
    expect_content(child, pipes);
    close_crowd(crowd, POOR_CROWD);
    luda_rendezvous_release(home);
}

int main(int argc, char **argv)
{
    struct rlimit limit;
    program = argv[0];
    if (argc == 4)
        return run_poor(argv[1], argv[2], argv[3]);
    signal(SIGPIPE, SIG_IGN);
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
    setrlimit(RLIMIT_NOFILE, &limit);
    make_noise();
    test_each();
    test_crowd();
    test_procession();
    test_flood();
    test_at_ranks();
    test_waiting_rank();
    test_poor_server("server");
    test_poor_server("none");
    test_poor_rank();
    return summary("collective strangers");
}
