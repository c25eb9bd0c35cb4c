// Flags of PyTorch's, NVIDIA's and MPI's programs, and what psring calls them.
#include <algorithm>

#include "common/text/suggestions.h"

namespace psring {
namespace {

struct OtherFlag {
  const char* flag;
  const char* others;  // separated by commas
};

// Of several rows with a name, the first whose flag the command has is suggested.
constexpr OtherFlag kOtherFlags[] = {
    {"batch",
     "batch_size,bs,b,per_device_batch_size,per_device_train_batch_size,train_batch_size,local_batch_size,"
     "micro_batch_size"},
    {"global_batch", "global_batch_size,total_batch_size"},
    {"micro_batches",
     "accumulate,gradient_accumulation_steps,accumulation_steps,accumulate_steps,grad_accum"},
    {"workers",
     "gpus,gpu_count,num_gpus,ngpus,n_gpus,g,t,n,np,nprocs,num_proc,num_processes,processes,ntasks,"
     "num_workers,nworkers,n_workers,w,world_size,ranks,nranks,num_ranks,replicas,devices"},
    {"nnodes", "num_nodes,num_machines,machines,hosts,hostfile,h"},
    {"nproc_per_node", "ntasks_per_node,procs_per_node,gpus_per_node,gpus_per_machine,npernode,ppn"},
    {"gpus_per_node", "nproc_per_node,gpus_per_machine,gpus_per_host,ntasks_per_node"},
    {"master_addr", "rdzv_endpoint,dist_url,init_method,master,master_address,coordinator"},
    {"link", "bandwidth,bw,rate,speed,network,network_bandwidth,link_speed,throughput,gbps,mbps"},
    {"intra", "nvlink,pcie,intra_bandwidth,intra_node"},
    {"latency", "delay,rtt,ping"},
    {"strategies", "algorithm,algorithms,algo,method,methods,mode,sync,distributed_backend"},
    {"strategy", "algorithm,algo,method,mode,sync,distributed_backend"},
    {"algorithms", "algo,schedule,strategies,strategy"},
    {"servers", "ps,num_ps,nps,num_servers,nservers,parameter_servers"},
    {"model", "arch,a,architecture,net_type"},
    {"workload", "trace,profile,csv,file,input,model,layers"},
    {"data", "dataset,datasets,dataset_name"},
    {"data_dir", "data_path,dataset_dir,root,data_root"},
    {"epochs", "e,num_epochs,num_train_epochs,max_epochs"},
    {"steps", "iters,iterations,num_iters,num_iterations,max_iter,max_iters,i,num_steps,max_steps"},
    {"iters", "iterations,steps,num_iters,repeat,repeats"},
    {"samples", "num_samples,examples,num_examples,tokens"},
    {"repeats", "rounds,runs,trials,reps,repetitions,r"},
    {"rounds", "repeats,runs,trials,reps,repetitions"},
    {"time_budget", "time,duration,time_limit,max_time,walltime"},
    {"lr", "learning_rate,lrate,eta,base_lr"},
    {"weight_decay", "wd"},
    {"optimizer", "opt,optim"},
    {"seed", "random_state,manual_seed,rng_seed"},
    {"schedule", "lr_scheduler,scheduler,sched,lr_scheduler_type"},
    {"clip_norm", "max_grad_norm,grad_clip,gradient_clipping,gradient_clip_val,clip"},
    {"bucket_mb", "bucket_cap_mb,bucket_size,bucket,bucket_size_mb,fusion_threshold_mb,fusion_threshold"},
    {"wire", "fp16_allreduce,compression,compress,fp16,half,dtype,gradient_dtype,quantize"},
    {"precision", "amp,bf16,fp16,dtype,mixed_precision,tf32"},
    {"datatype", "dtype,type"},
    {"device", "gpu,cuda,accelerator,use_gpu,no_cuda"},
    {"threads", "num_threads,omp_num_threads,cpus_per_task,cpus,cores"},
    {"straggler", "slow,slow_worker,slowdown"},
    {"recompute", "checkpointing,activation_checkpointing,gradient_checkpointing"},
    {"resume", "load,restore,ckpt_path,resume_from_checkpoint,from_checkpoint,load_checkpoint"},
    {"checkpoint_dir", "save,save_dir,ckpt,ckpt_dir,save_checkpoint"},
    {"checkpoint_every", "save_interval,save_steps,save_every"},
    {"eval_every", "eval_interval,eval_steps,eval_freq,val_check_interval,test_interval"},
    {"no_eval", "skip_eval,no_validation"},
    {"out", "o,output,output_dir,outdir,log_dir,logdir,results,save_to,output_path,html"},
    {"lang", "language,locale"},
    {"verbose", "v,debug,print_all,full"},
    {"dry_run", "plan,preview,show_plan"},
    {"live", "dashboard,serve,watch,web"},
    {"config", "c,config_file,cfg,conf"},
    {"size", "bytes,b,message_size,nbytes"},
    {"sizes", "bytes,size,message_size,nbytes"},
    {"collective", "op,operation,coll,pattern"},
};

}  // namespace

std::string NearestFlag(const std::string& typed, const std::vector<std::string>& known) {
  for (const OtherFlag& row : kOtherFlags) {
    if (std::ranges::count(known, row.flag) > 0 && IsOneOf(typed, row.others)) return row.flag;
  }
  return NearestWord(typed, known);
}

}  // namespace psring
