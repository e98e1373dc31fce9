/* tf_api.c: finds the functions of TensorFlow's C API in this process. */
#include "tensorflow/tf_api.h"

#include <dlfcn.h>
#include <string.h>

struct tf_api tf;

/* TensorFlow's modules are loaded for themselves alone in some versions: then its names are
 * found in the library that carries them, which is loaded already. */
static void *find(void *library, const char *name)
{
    void *function = library != NULL ? dlsym(library, name) : NULL;

    return function != NULL ? function : dlsym(RTLD_DEFAULT, name);
}

const char *tf_api_find(void)
{
    void *library = dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD);
    void *function;

#define TF_CALL_FIND(result, name, arguments)                                          \
    function = find(library, "TF_" #name);                                             \
    if (function == NULL)                                                              \
        return "TF_" #name;                                                            \
    memcpy(&tf.name, &function, sizeof function);
    TF_CALLS(TF_CALL_FIND)
#undef TF_CALL_FIND
    return NULL;
}
