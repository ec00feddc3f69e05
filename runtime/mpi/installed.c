/*
 * An installed MPI, opened at run time. What differs between the two families of binary interfaces (Open MPI's, where
 * handles are addresses of symbols, and MPICH's, where they are numbers) is one row each.
 */
#include "mpi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREAD_SINGLE = 0, THREAD_MULTIPLE = 3 };

/* Of either family, with room. */
typedef union status { void *align; int words[16]; } status;

/* A handle that is a number travels in the low half of a register, as the callee reads it. */
typedef void *handle;

#define FUNCTIONS(FUNCTION)                                                                                            \
    FUNCTION(MPI_Init_thread, (int *, char ***, int, int *))                                                           \
    FUNCTION(MPI_Initialized, (int *))                                                                                 \
    FUNCTION(MPI_Finalized, (int *))                                                                                   \
    FUNCTION(MPI_Query_thread, (int *))                                                                                \
    FUNCTION(MPI_Finalize, (void))                                                                                     \
    FUNCTION(MPI_Comm_rank, (handle, int *))                                                                           \
    FUNCTION(MPI_Comm_size, (handle, int *))                                                                           \
    FUNCTION(MPI_Comm_set_errhandler, (handle, handle))                                                                \
    FUNCTION(MPI_Isend, (const void *, int, handle, int, int, handle, luda_mpi_request *))                             \
    FUNCTION(MPI_Irecv, (void *, int, handle, int, int, handle, luda_mpi_request *))                                   \
    FUNCTION(MPI_Test, (luda_mpi_request *, int *, status *))                                                          \
    FUNCTION(MPI_Cancel, (luda_mpi_request *))                                                                         \
    FUNCTION(MPI_Request_free, (luda_mpi_request *))

static struct {
#define FUNCTION(name, arguments) int (*name) arguments;
    FUNCTIONS(FUNCTION)
#undef FUNCTION
    handle world, byte, errors_return;
    bool began;
} mpi;

static luda_status find_functions(void *library)
{
    const struct {
        const char *name;
        void **to;
    } functions[] = {
#define FUNCTION(name, arguments) { #name, (void **)&mpi.name },
        FUNCTIONS(FUNCTION)
#undef FUNCTION
    };
    char text[160];
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        *functions[i].to = dlsym(library, functions[i].name);
        if (!*functions[i].to) {
            snprintf(text, sizeof text, "mpi: the installed MPI has no %s", functions[i].name);
            return luda_set_error(LUDA_EIO, text);
        }
    }
    return LUDA_OK;
}

static void find_handles(void *library)
{
    mpi.world = dlsym(library, "ompi_mpi_comm_world");
    mpi.byte = dlsym(library, "ompi_mpi_byte");
    mpi.errors_return = dlsym(library, "ompi_mpi_errors_return");
    if (!mpi.world) { /* MPICH, and those that keep to its interface */
        mpi.world = (handle)0x44000000;
        mpi.byte = (handle)0x4c00010d;
        mpi.errors_return = (handle)0x54000001;
    }
}

luda_status luda__mpi_load(void)
{
    static const char *const open_mpi[] = { "libmpi.so.40", "libmpi.so" };
    static const char *const mpich[] = { "libmpich.so.12", "libmpi.so.12" };
    bool hydra = getenv("PMI_SIZE") && !getenv("OMPI_COMM_WORLD_SIZE"); /* started by MPICH's launcher */
    const char *const *usual[] = { hydra ? mpich : open_mpi, hydra ? open_mpi : mpich };
    const char *chosen = getenv("LUDA_MPI_LIBRARY");
    void *library = RTLD_DEFAULT; /* the program's own, where it has one */
    if (!dlsym(RTLD_DEFAULT, "MPI_Init_thread")) {
        /* Global, since an MPI's own plug-ins need its symbols. */
        library = chosen ? dlopen(chosen, RTLD_NOW | RTLD_GLOBAL) : NULL;
        for (int i = 0; i < 4 && !library && !chosen; i++)
            library = dlopen(usual[i / 2][i % 2], RTLD_NOW | RTLD_GLOBAL);
        if (!library)
            return luda_set_error(LUDA_EIO, "mpi: there is no MPI here; install one (libopenmpi3 or libmpich12), or name its library "
                                            "in LUDA_MPI_LIBRARY");
    }
    if (find_functions(library) != LUDA_OK)
        return LUDA_EIO;
    find_handles(library);
    return LUDA_OK;
}

luda_status luda__mpi_begin(int *rank, int *size)
{
    int yes = 0, over = 0, level = 0;
    mpi.MPI_Initialized(&yes);
    mpi.MPI_Finalized(&over);
    if (over)
        return luda_set_error(LUDA_ECLOSED, "mpi: the program has ended MPI already");
    if (yes) {
        mpi.MPI_Query_thread(&level);
        if (level != THREAD_MULTIPLE)
            return luda_set_error(LUDA_ENOTSUP, "mpi: the program began MPI without MPI_THREAD_MULTIPLE");
    } else {
        if (mpi.MPI_Init_thread(NULL, NULL, THREAD_SINGLE, &level) != 0)
            return luda_set_error(LUDA_EIO, "mpi: MPI_Init_thread failed");
        mpi.began = true;
        mpi.MPI_Comm_set_errhandler(mpi.world, mpi.errors_return);
    }
    mpi.MPI_Comm_rank(mpi.world, rank);
    mpi.MPI_Comm_size(mpi.world, size);
    return LUDA_OK;
}

void luda__mpi_end(void)
{
    if (mpi.began)
        mpi.MPI_Finalize();
}

bool luda__mpi_send(const void *bytes, size_t count, int to, int tag, luda_mpi_request *request)
{
    return mpi.MPI_Isend(bytes, (int)count, mpi.byte, to, tag, mpi.world, request) == 0;
}

bool luda__mpi_receive(void *bytes, size_t count, int from, int tag, luda_mpi_request *request)
{
    return mpi.MPI_Irecv(bytes, (int)count, mpi.byte, from, tag, mpi.world, request) == 0;
}

luda_mpi_progress luda__mpi_test(luda_mpi_request *request)
{
    status ignored;
    int done = 0;
    if (mpi.MPI_Test(request, &done, &ignored) != 0)
        return LUDA_MPI_FAILED;
    return done ? LUDA_MPI_DONE : LUDA_MPI_PENDING;
}

void luda__mpi_cancel(luda_mpi_request *request)
{
    mpi.MPI_Cancel(request);
    mpi.MPI_Request_free(request);
}
