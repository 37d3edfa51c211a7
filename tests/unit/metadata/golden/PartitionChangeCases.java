package org.apache.kafka.controller;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.MetadataVersion;

/** Asks Apache Kafka what becomes of random partitions; prints one JSON object per line. See README.md. */
public class PartitionChangeCases {
    static Random random;

    static List<Integer> subset(List<Integer> from, double p) {
        List<Integer> out=new ArrayList<>();
        for (int x: from) if (random.nextDouble()<p) out.add(x);
        return out;
    }
    static int[] arr(List<Integer> l) {
        return l.stream().mapToInt(i->i).toArray();
    }
    static String s(Collection<Integer> l) {
        return l==null?"null":l.toString();
    }
    public static void main(String[] a) throws Exception {
        random = new Random(Long.parseLong(a[0]));
        int n=Integer.parseInt(a[1]);
        Uuid topic = new Uuid(1,2);
        System.out.println("[");
        for (int i=0;i<n;i++) {
            int rf=1+random.nextInt(4);
            List<Integer> all=new ArrayList<>(List.of(0,1,2,3,4,5));
            Collections.shuffle(all, random);
            List<Integer> replicas=new ArrayList<>(all.subList(0,rf));
            boolean elrOn=random.nextInt(4)!=0;
            int minIsr=1+random.nextInt(3);
            List<Integer> isr=subset(replicas,0.6);
            if (isr.isEmpty() && !elrOn) isr.add(replicas.get(random.nextInt(rf)));
            Collections.shuffle(isr, random);
            List<Integer> elr=new ArrayList<>(), lk=new ArrayList<>();
            if (elrOn || random.nextInt(5)==0) {
                if (isr.size()<Math.min(minIsr,rf)) {
                    for (int x: replicas) if(!isr.contains(x) && random.nextBoolean()) elr.add(x);
                }
            }
            if (isr.isEmpty() && random.nextInt(3)!=0) lk.add(replicas.get(random.nextInt(rf)));
            List<Integer> removing=new ArrayList<>(), adding=new ArrayList<>();
            if (random.nextInt(3)==0) {
                for (int x: replicas) {
                    int k=random.nextInt(4);
                    if(k==0) removing.add(x);
                    else if(k==1) adding.add(x);
                }
            }
            int leader = isr.isEmpty()?-1: (random.nextInt(5)==0?-1:isr.get(random.nextInt(isr.size())));
            LeaderRecoveryState rec = random.nextInt(8)==0?LeaderRecoveryState.RECOVERING:LeaderRecoveryState.RECOVERED;
            List<Integer> acceptable=subset(List.of(0,1,2,3,4,5),0.6);
            Uuid[] dirs=new Uuid[rf];
            for(int k=0;k<rf;k++) dirs[k]=new Uuid(7,replicas.get(k));
            PartitionRegistration p=new PartitionRegistration.Builder().setReplicas(arr(replicas)).setDirectories(dirs).setIsr(arr(isr)).setElr(arr(elr)).setLastKnownElr(arr(lk)).setRemovingReplicas(arr(removing)).setAddingReplicas(arr(adding)).setLeader(leader).setLeaderRecoveryState(rec).setLeaderEpoch(5).setPartitionEpoch(9).build();
            MetadataVersion mv = elrOn? MetadataVersion.IBP_4_3_IV0 : MetadataVersion.fromFeatureLevel((short)(new int[]{9,11,12,14,17,21,30}[random.nextInt(7)]));
            PartitionChangeBuilder b=new PartitionChangeBuilder(p,topic,0,x->acceptable.contains(x),mv,minIsr,elrOn);
            PartitionChangeBuilder.Election e=PartitionChangeBuilder.Election.values()[random.nextInt(3)];
            b.setElection(e);
            b.setDefaultDirProvider(x->new Uuid(7,x));
            String op;
            List<Integer> tIsr=null,tRep=null,tRem=null,tAdd=null,unclean=null;
            int tRec=-1;
            int kind=random.nextInt(5);
            if(kind==3 && leader<0) kind=0;
            switch(kind) {
                case 0: op="none";
                break;
                case 1:  {
                    op="leave";
                    int x=replicas.get(random.nextInt(rf));
                    tIsr=new ArrayList<>(isr);
                    tIsr.remove((Integer)x);
                    acceptable.remove((Integer)x);
                    break;
                }
                case 2:  {
                    op="unclean";
                    int x=replicas.get(random.nextInt(rf));
                    tIsr=new ArrayList<>(isr);
                    tIsr.remove((Integer)x);
                    acceptable.remove((Integer)x);
                    unclean=List.of(x);
                    break;
                }
                case 3:  {
                    op="isr";
                    tIsr=subset(replicas,0.6);
                    if(!tIsr.contains(leader)) tIsr.add(leader);
                    final List<Integer> tt=tIsr;
                    for (int x: tt) if(!acceptable.contains(x)) acceptable.add(x);
                    Collections.sort(acceptable);
                    tRec = tIsr.size()==1 && rec==LeaderRecoveryState.RECOVERING ? random.nextInt(2):0;
                    break;
                }
                default:  {
                    op="reassign";
                    Collections.shuffle(all, random);
                    List<Integer> target=new ArrayList<>(all.subList(0,1+random.nextInt(4)));
                    Set<Integer> rem=new TreeSet<>(replicas);
                    rem.removeAll(target);
                    Set<Integer> ad=new TreeSet<>(target);
                    ad.removeAll(replicas);
                    tRem=new ArrayList<>(rem);
                    tAdd=new ArrayList<>(ad);
                    tRep=new ArrayList<>(target);
                    tRep.addAll(rem);
                    break;
                }
            }
            if(tIsr!=null) b.setTargetIsr(tIsr);
            if(tRep!=null) b.setTargetReplicas(tRep);
            if(tRem!=null) b.setTargetRemoving(tRem);
            if(tAdd!=null) b.setTargetAdding(tAdd);
            if(unclean!=null) b.setUncleanShutdownReplicas(unclean);
            if(tRec>=0) b.setTargetLeaderRecoveryState(LeaderRecoveryState.of((byte)tRec));
            String result;
            try  {
                Optional<ApiMessageAndVersion> o=b.build();
                if(o.isEmpty()) result="null";
                else  {
                    PartitionChangeRecord c=(PartitionChangeRecord)o.get().message();
                    String d="null";
                    if(c.directories()!=null) {
                        List<Integer> dd=new ArrayList<>();
                        for(Uuid u: c.directories()) dd.add((int)u.getLeastSignificantBits());
                        d=dd.toString();
                    }
                    result="{\"version\":"+o.get().version()+",\"isr\":"+s(c.isr())+",\"leader\":"+c.leader()+",\"replicas\":"+s(c.replicas())+",\"removing\":"+s(c.removingReplicas())+",\"adding\":"+s(c.addingReplicas())+",\"recovery\":"+c.leaderRecoveryState()+",\"elr\":"+s(c.eligibleLeaderReplicas())+",\"last\":"+s(c.lastKnownElr())+",\"dirs\":"+d+"}";
                }
            }
            catch (Exception ex) {
                result="\""+ex.getClass().getSimpleName()+"\"";
            }
            System.out.println("{\"replicas\":"+replicas+",\"isr\":"+isr+",\"elr\":"+elr+",\"last\":"+lk+",\"removing\":"+removing+",\"adding\":"+adding+",\"leader\":"+leader+",\"recovery\":"+rec.value()+",\"acceptable\":"+acceptable+",\"elr_on\":"+elrOn+",\"min_isr\":"+minIsr+",\"level\":"+mv.featureLevel()+",\"election\":\""+e+"\",\"op\":\""+op+"\",\"t_isr\":"+s(tIsr)+",\"t_replicas\":"+s(tRep)+",\"t_removing\":"+s(tRem)+",\"t_adding\":"+s(tAdd)+",\"t_recovery\":"+tRec+",\"unclean\":"+s(unclean)+",\"result\":"+result+"}"+(i+1<n?",":"]"));
        }
    }
}
