/*
 * How rank processes come to common memory: the first rank makes a memfd and tells the others its process and descriptor;
 * they open it through /proc, and it has no name that could be left behind. A token in the memory shows that it is the
 * right one. If any rank cannot, or does not want to (LUDA_LANE=off), no rank has it, and sockets carry everything: also
 * where only some of the ranks share a host.
 */
#include "lane.h"
#include "net.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Beyond the tags of send and recv. */
static const uint64_t first_slot = (uint64_t)1 << 32;

enum { CARD, ANSWER, VERDICT };

typedef struct card {
    uint8_t token[LUDA_LANE_TOKEN];
    char boot[40];  /* which start of which machine */
    uint64_t space; /* in which processes are numbered */
    uint64_t bytes;
    int32_t process, fd; /* fd -1: there is nothing */
} card;

/* What this rank maps, on the way. */
typedef struct mapping {
    luda_wait *wait;
    uint64_t call;
    card card;
    void *memory;
    int fd;
} mapping;

static bool wanted(void)
{
    const char *wish = getenv("LUDA_LANE");
    return !wish || strcmp(wish, "off") != 0;
}

static void read_host(card *c)
{
    struct stat space;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, c->boot, sizeof c->boot - 1) < 0)
        c->boot[0] = 0;
    if (fd >= 0)
        close(fd);
    if (stat("/proc/self/ns/pid", &space) == 0)
        c->space = (uint64_t)space.st_ino;
}

/* --- Messages of the set-up --- */

static luda_slot_name slot(const mapping *m, uint32_t step)
{
    return (luda_slot_name){ .sequence = first_slot + m->call, .step = step, .kind = LUDA_SLOT_MESSAGE };
}

static luda_status say(const mapping *m, int to, uint32_t step, const void *data, size_t bytes)
{
    const luda_transport *transport = m->wait->transport;
    return transport->send(transport->state, to, slot(m, step), data, bytes);
}

static luda_status hear(const mapping *m, int from, uint32_t step, void *data, size_t bytes, luda_comm_fault *fault)
{
    luda_wait *wait = m->wait;
    luda_status status = luda__mail_post(wait->board, wait->rank, from, slot(m, step), data, bytes);
    if (status != LUDA_OK)
        luda__fault(fault, status, "%s", luda_last_error());
    else
        status = luda__mail_await_message(wait, from, slot(m, step), fault);
    luda__mail_withdraw_message(wait->board, wait->rank, from, slot(m, step));
    return status;
}

/* --- The memory --- */

static void *map(int fd, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* All of it is there from the start, and nobody can make it shorter: touching it never fails. */
static void create(mapping *m, size_t bytes)
{
    card *c = &m->card;
    c->fd = -1;
    c->bytes = bytes;
    c->process = (int32_t)getpid();
    if (!wanted() || luda__random_bytes(c->token, sizeof c->token) != LUDA_OK)
        return;
    m->fd = memfd_create("luda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (m->fd < 0 || posix_fallocate(m->fd, 0, (off_t)bytes) != 0 ||
        fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return;
    m->memory = map(m->fd, bytes);
    if (m->memory) {
        memcpy(m->memory, c->token, sizeof c->token);
        c->fd = m->fd;
    }
}

static void open_theirs(mapping *m, const card *host, size_t bytes)
{
    const card *c = &m->card;
    struct stat found;
    char path[64];
    int fd;
    if (!wanted() || c->fd < 0 || c->bytes != bytes || c->space != host->space ||
        memcmp(c->boot, host->boot, sizeof c->boot) != 0)
        return;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", c->process, c->fd);
    fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return;
    if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink == 0 && (size_t)found.st_size == bytes)
        m->memory = map(fd, bytes);
    close(fd);
    if (m->memory && memcmp(m->memory, c->token, sizeof c->token) != 0) {
        munmap(m->memory, bytes);
        m->memory = NULL;
    }
}

static luda_status lead(mapping *m, size_t bytes, const card *host, uint8_t *all, luda_comm_fault *fault)
{
    int size = m->wait->board->size;
    uint8_t answer;
    create(m, bytes);
    memcpy(m->card.boot, host->boot, sizeof m->card.boot);
    m->card.space = host->space;
    *all = m->memory != NULL;
    for (int q = 1; q < size; q++)
        LUDA_TRY(say(m, q, CARD, &m->card, sizeof m->card));
    for (int q = 1; q < size; q++) {
        LUDA_TRY(hear(m, q, ANSWER, &answer, 1, fault));
        *all = *all && answer == 1;
    }
    for (int q = 1; q < size; q++)
        LUDA_TRY(say(m, q, VERDICT, all, 1));
    return LUDA_OK;
}

static luda_status follow(mapping *m, size_t bytes, const card *host, uint8_t *all, luda_comm_fault *fault)
{
    uint8_t answer;
    LUDA_TRY(hear(m, 0, CARD, &m->card, sizeof m->card, fault));
    open_theirs(m, host, bytes);
    answer = m->memory != NULL;
    LUDA_TRY(say(m, 0, ANSWER, &answer, 1));
    return hear(m, 0, VERDICT, all, 1, fault);
}

luda_status luda__lane_map(luda_wait *wait, size_t bytes, uint64_t call, void **out, luda_comm_fault *fault)
{
    mapping m = { .wait = wait, .call = call, .fd = -1 };
    card host = { .fd = -1 };
    uint8_t all = 0;
    luda_status status;
    fault->status = LUDA_OK;
    read_host(&host);
    status = (wait->rank == 0 ? lead : follow)(&m, bytes, &host, &all, fault);
    if (status != LUDA_OK && fault->status == LUDA_OK) {
        luda__fault(fault, status, "%s", luda_last_error());
        luda__blame(fault, wait->rank);
    }
    if (m.fd >= 0)
        close(m.fd);
    if (m.memory && (status != LUDA_OK || all != 1)) {
        munmap(m.memory, bytes);
        m.memory = NULL;
    }
    if (status == LUDA_OK)
        *out = m.memory;
    return status;
}

luda_status luda__lane_open(luda_comm *comm, double deadline)
{
    enum { LEAST = 2 }; /* seconds: all are here, and it is a matter of milliseconds */
    double timeout = fmax(deadline - luda__now(), LEAST);
    luda_wait wait = { .board = comm->board, .transport = &comm->transport, .rank = comm->rank, .timeout = timeout,
                       .deadline = luda__now() + timeout, .name = "connect" };
    size_t bytes = luda__lane_bytes(comm->size, true);
    luda_comm_fault fault;
    luda_lane *lane;
    void *memory;
    luda_status status;
    if (comm->size > LUDA_LANE_RANKS)
        return LUDA_OK;
    status = luda__lane_map(&wait, bytes, 0, &memory, &fault);
    if (status != LUDA_OK)
        return luda__fail_text(status, fault.text);
    if (!memory)
        return LUDA_OK;
    lane = luda__lane_new(memory, comm->size, true);
    if (!lane) {
        munmap(memory, bytes);
        return luda__fail(LUDA_ENOMEM, "connect: no memory for a rank");
    }
    pthread_mutex_lock(&comm->board->lock); /* the network thread may have news already */
    comm->board->lane = lane;
    pthread_mutex_unlock(&comm->board->lock);
    return LUDA_OK;
}
