#include "luda.h"
int main(){luda_set_threads(1);luda_tensor*a,*b,*o;int64_t s[2]={64,64};
 luda_tensor_new(LUDA_F32,(luda_device){LUDA_CPU,0},2,s,&a);luda_tensor_new(LUDA_F32,(luda_device){LUDA_CPU,0},2,s,&b);
 float*p=luda_tensor_data(a),*q=luda_tensor_data(b);for(int i=0;i<4096;i++)p[i]=q[i]=1;
 for(int i=0;i<1000000;i++){luda_matmul(a,b,&o);luda_tensor_release(o);}}
