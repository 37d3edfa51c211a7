(()=>{try{let t=localStorage.getItem("moldau.theme");(t==="light"||t==="dark")&&(document.documentElement.dataset.theme=t)}catch{}})();
